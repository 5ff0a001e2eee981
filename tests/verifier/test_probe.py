"""The start-up probe on real programs: it refuses a rung for a single bit, and one that cannot run; else none."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from deployments.lm.quant.linear import Precision
from deployments.verifier.loading import LoadedModel
from deployments.verifier.probe import ProbeReport, probe
from deployments.verifier.programs import Programs
from tests.verifier.conftest import LoadGolden

type Change = Callable[[Array], Array]


@pytest.fixture(scope="module")
def model(load_golden: LoadGolden) -> LoadedModel:
    return load_golden(Precision.INT8)


@pytest.fixture
def programs(model: LoadedModel) -> Iterator[Programs]:
    """The real ones, with their parts put back afterwards."""
    kept = (dict(model.programs._body), dict(model.programs._emit), model.programs.ladder)
    model.programs.ladder = model.report.ladder
    yield model.programs
    model.programs._body, model.programs._emit, model.programs.ladder = kept
    model.programs.clear_cache()


def report(programs: Programs) -> ProbeReport:
    return probe(programs, vocabulary=512, progress=lambda text: None)


def next_up(x: Array, *, place: tuple[int, ...]) -> Array:
    """One element one bit larger."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint16 if x.dtype == jnp.bfloat16 else jnp.uint32)
    return jax.lax.bitcast_convert_type(bits.at[place].add(1), x.dtype)


def test_all_rungs_compute_the_same_bits(programs: Programs) -> None:
    found = report(programs)

    assert found.refused == {}
    assert found.ladder == programs.ladder
    assert found.rows >= 32
    assert not any(np.asarray(programs.page(page, layer=0)).any() for page in range(programs.shape.pages))


@pytest.mark.parametrize("row", [0, 1, 3, 7, 12, 30, 31])
def test_a_hidden_row_one_bit_off_is_noticed(programs: Programs, row: int) -> None:
    """In whichever row of the window; and the last element of it, as far from the first as can be."""
    wide = programs.ladder.widest
    right = programs._body[wide]

    def wrong(*arguments: Any) -> Any:
        hidden, cache = right(*arguments)
        return next_up(hidden, place=(row, -1)), cache

    programs._body[wide] = wrong

    found = report(programs)
    assert set(found.refused) == {wide}
    assert found.refused[wide].startswith(("hidden row", "row beside"))
    assert wide not in found.ladder.rungs
    assert found.ladder.rungs == programs.ladder.rungs[:-1]


def test_a_cache_page_one_bit_off_is_noticed(programs: Programs) -> None:
    """In the last layer, where no hidden row of the same window could show it."""
    wide = programs.ladder.widest
    right = programs._body[wide]

    def wrong(*arguments: Any) -> Any:
        hidden, cache = right(*arguments)
        return hidden, (*cache[:-1], next_up(cache[-1], place=(1, 1, 0, 3, 2)))

    programs._body[wide] = wrong

    assert set(report(programs).refused) == {wide}


def test_a_rung_that_cannot_run_is_refused_and_says_why(programs: Programs) -> None:
    """Also after it has swallowed the cache, as a failed program does with what it was given."""
    wide = programs.ladder.widest

    def fails(state: Any, cache: tuple[Array, ...], window: Any) -> Any:
        del state, window
        for layer in cache:
            layer.delete()
        raise RuntimeError("out of memory")

    programs._body[wide] = fails

    found = report(programs)
    assert found.refused == {wide: "it could not be run (RuntimeError: out of memory)"}
    assert found.ladder.rungs == programs.ladder.rungs[:-1]


def test_without_the_smallest_rung_nothing_starts(programs: Programs) -> None:
    def fails(*arguments: Any) -> Any:
        del arguments
        raise RuntimeError("out of memory")

    programs._body[programs.ladder.rungs[0]] = fails

    with pytest.raises(RuntimeError, match="out of memory"):
        report(programs)


@pytest.mark.parametrize("part", ["tokens", "scores", None])
@pytest.mark.parametrize(("size", "left"), [(16, [8]), (32, [8, 16])])
def test_rungs_that_need_an_unproved_size_of_the_draw_are_refused(
    programs: Programs, size: int, left: list[int], part: str | None
) -> None:
    """What a wider window might draw for all its rows is then never asked of it."""
    right = programs._emit[size]

    def wrong(*arguments: Any) -> Any:
        if part is None:
            raise RuntimeError("out of memory")
        emitted = right(*arguments)
        return emitted._replace(**{part: getattr(emitted, part).at[size - 1].add(1)})

    programs._emit[size] = wrong
    found = report(programs)

    assert programs.ladder.emits == (8, 16, 32)
    assert [rung.rows for rung in found.ladder.rungs] == left


@pytest.mark.parametrize("part", ["own", "top", "top_tokens"])
def test_a_size_that_reports_other_logprobs_is_not_used(programs: Programs, part: str) -> None:
    right = programs._emit[32]

    def wrong(*arguments: Any) -> Any:
        emitted = right(*arguments)
        odd = getattr(emitted.logprobs, part)
        return emitted._replace(logprobs=emitted.logprobs._replace(**{part: odd.at[-1].add(1)}))

    programs._emit[32] = wrong

    assert [rung.rows for rung in report(programs).ladder.rungs] == [8, 16]


def test_a_size_that_shapes_otherwise_is_not_used(programs: Programs) -> None:
    """Only rows that ask for it are affected, in one size of the draw."""
    right = programs._emit[32]

    def wrong(state: Any, hidden: Any, request: Any, extras: Any) -> Any:
        return right(state, hidden, request, extras._replace(rows=np.asarray(extras.rows) * np.float32(1.01)))

    programs._emit[32] = wrong

    assert [rung.rows for rung in report(programs).ladder.rungs] == [8, 16]


def test_a_draw_that_depends_on_what_others_ask_for_does_not_start(programs: Programs) -> None:
    """In all sizes alike, so that no comparison of sizes shows it."""
    for size, right in list(programs._emit.items()):

        def wrong(state: Any, hidden: Any, request: Any, extras: Any, right: Any = right) -> Any:
            emitted = right(state, hidden, request, extras)
            if not np.asarray(extras.numbers)[0]:
                return emitted
            return emitted._replace(scores=next_up(emitted.scores, place=(1,)))

        programs._emit[size] = wrong

    with pytest.raises(RuntimeError, match="depends on what is asked for beside it"):
        report(programs)
