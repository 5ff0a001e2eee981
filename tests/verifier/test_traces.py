"""The start-up proof of a network with recurrent layers: it notices a state that is one bit off, in any rung, and one
that depends on what was drafted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from deployments.lm.cache.layout import RecurrentState
from deployments.lm.quant.linear import Precision
from deployments.lm.recurrence import SEGMENT_FIELDS
from deployments.verifier.loading import LoadedModel, load_model
from deployments.verifier.probe import ProbeReport, probe
from deployments.verifier.programs import Programs
from deployments.verifier.sizing import ModelSettings


@pytest.fixture(scope="module")
def model(goldens: Path) -> LoadedModel:
    settings = ModelSettings(
        model_path=str(goldens / "qwen3_5_moe"),
        precision=Precision.INT8,
        slots=2,
        context=128,
        page_size=16,
        draft_k=3,
        ladder=(8, 16),
    )
    return load_model(settings, progress=lambda text: None)


@pytest.fixture
def programs(model: LoadedModel) -> Iterator[Programs]:
    """The real ones, with their parts put back afterwards."""
    kept = dict(model.programs._body)
    yield model.programs
    model.programs._body = kept
    model.programs.clear_cache()


def report(programs: Programs) -> ProbeReport:
    return probe(programs, vocabulary=512, progress=lambda text: None)


def next_up(x: Array, *, place: tuple[int, ...]) -> Array:
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jax.lax.bitcast_convert_type(bits.at[place].add(1), x.dtype)


@pytest.mark.slow
def test_every_rung_is_proved_and_nothing_is_left(programs: Programs) -> None:
    found = report(programs)

    assert found.refused == {}
    assert not any(leaf.any() for leaf in jax.tree.leaves(programs._cache))


@pytest.mark.parametrize("part", ["matrices", "history"])
def test_a_state_one_bit_off_is_noticed(programs: Programs, part: str) -> None:
    """In the last recurrent layer, after the last row: nothing but the comparison of states could show it."""
    wide = programs.ladder.widest
    right, layer = programs._body[wide], 2

    def wrong(*arguments: Any) -> Any:
        hidden, cache = right(*arguments)
        entry: RecurrentState = cache[layer]
        changed = next_up(getattr(entry, part), place=(1, *([0] * (getattr(entry, part).ndim - 1))))
        return hidden, (*cache[:layer], entry._replace(**{part: changed}), *cache[layer + 1 :])

    programs._body[wide] = wrong
    # The other slot's state, or the slot's own: one of the two is state 1.
    assert set(report(programs).refused) == {wide}


def test_drafts_that_are_not_run_again_are_noticed(programs: Programs) -> None:
    """In every rung alike, so that no comparison of rungs shows it: replayed segments are left out."""
    assert programs.room is not None
    segments, pending = programs.room.segments, programs.room.pending
    for rung, right in list(programs._body.items()):

        def wrong(weights: Any, cache: Any, window: Any, right: Any = right) -> Any:
            numbers = np.array(window.recurrence)
            table = numbers[: segments * SEGMENT_FIELDS].reshape(-1, SEGMENT_FIELDS)
            replayed = (table[:, 0] < pending) & (table[:, 1] > 0)
            table[:] = np.concatenate([table[~replayed], np.zeros((replayed.sum(), SEGMENT_FIELDS), np.int32)])
            return right(weights, cache, window._replace(recurrence=numbers))

        programs._body[rung] = wrong

    with pytest.raises(RuntimeError, match=r"a state depends on what was drafted .*; it cannot serve"):
        report(programs)
