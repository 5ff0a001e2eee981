"""What the proof of calls must notice: one bit of a score or a page, another draft or draw, a kept draft, a window."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from deployments.verifier.calls import RoundsOutput, RoundsSize
from deployments.verifier.compiling import Unbuilt
from deployments.verifier.loading import LoadedModel, load_model
from deployments.verifier.programs import Programs
from deployments.verifier.round_proof import refused_calls

type Change = Callable[[RoundsOutput, Any], tuple[RoundsOutput, Any]]


@pytest.fixture
def programs(golden_on_chip: LoadedModel) -> Iterator[Programs]:
    found = golden_on_chip.programs
    kept = dict(found._rounds)
    yield found
    found._rounds = kept
    found.clear_cache()


def refused(model: LoadedModel) -> dict[RoundsSize, str]:
    assert model.settings.chip is not None
    drafter = model.settings.chip.drafter
    return refused_calls(model.programs, drafter=drafter, vocabulary=512, progress=lambda text: None)


def changed(programs: Programs, change: Change) -> RoundsSize:
    """Has the calls of one size bring something else."""
    size = programs.calls[1]
    right = programs._rounds[size]

    def wrong(*arguments: Any) -> Any:
        return change(*right(*arguments))

    programs._rounds[size] = wrong
    return size


def one_bit_more(x: Array, *, place: tuple[int, ...]) -> Array:
    bits = jax.lax.bitcast_convert_type(x, jnp.uint16 if x.dtype == jnp.bfloat16 else jnp.uint32)
    return jax.lax.bitcast_convert_type(bits.at[place].add(1), x.dtype)


def a_score(out: RoundsOutput, cache: Any) -> tuple[RoundsOutput, Any]:
    return out._replace(scores=one_bit_more(out.scores, place=(3, 1, 0))), cache


def a_draw(out: RoundsOutput, cache: Any) -> tuple[RoundsOutput, Any]:
    return out._replace(tokens=out.tokens.at[3, 0, 0].add(1)), cache


def a_draft(out: RoundsOutput, cache: Any) -> tuple[RoundsOutput, Any]:
    return out._replace(drafts=out.drafts.at[0, :, 0].add(1)), cache


def one_more_kept(out: RoundsOutput, cache: Any) -> tuple[RoundsOutput, Any]:
    return out._replace(live=out.live + (out.live <= out.drafted)), cache


def a_window_fewer(out: RoundsOutput, cache: Any) -> tuple[RoundsOutput, Any]:
    return out._replace(ran=out.ran - 1), cache


def a_page(out: RoundsOutput, cache: Any) -> tuple[RoundsOutput, Any]:
    return out, (*cache[:-1], one_bit_more(cache[-1], place=(1, 0, 0, 1, 0)))


def test_nothing_is_refused_and_nothing_left_behind(golden_on_chip: LoadedModel, programs: Programs) -> None:
    assert refused(golden_on_chip) == {}
    assert not any(np.asarray(programs.page(page, layer=0)).any() for page in range(programs.shape.pages))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (a_score, "scores of window 3 differ"),
        (a_draw, "draws of window 3 differ"),
        (a_draft, "rows of window 0 differ"),
        (one_more_kept, "kept drafts of window"),
        (a_window_fewer, "there were 3 windows in place of 4"),
        (a_page, "pages differ"),
    ],
)
def test_what_differs_is_noticed(golden_on_chip: LoadedModel, programs: Programs, change: Change, reason: str) -> None:
    size = changed(programs, change)
    found = refused(golden_on_chip)

    assert set(found) == {size}
    assert found[size].startswith(reason)


def test_what_does_not_compile_is_refused(golden_on_chip: LoadedModel, programs: Programs) -> None:
    size = programs.calls[0]
    programs._rounds[size] = Unbuilt(reason="it does not compile (Error: too large)")

    assert refused(golden_on_chip) == {
        size: "they could not be run (RuntimeError: it does not compile (Error: too large))"
    }


@pytest.mark.slow
def test_long_calls_over_a_short_context_are_proved(golden_on_chip: LoadedModel) -> None:
    """More windows than the prompt has tokens, and fewer than a context has."""
    chip = golden_on_chip.settings.chip
    assert chip is not None
    settings = replace(golden_on_chip.settings, context=64, ladder=(8, 16), chip=replace(chip, rounds=64))
    model = load_model(settings, progress=lambda text: None)
    assert model.report.refused_calls == {}
    assert [size.rung.rows for size in model.programs.calls] == [8, 16]
