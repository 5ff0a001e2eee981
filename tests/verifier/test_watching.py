"""Nothing is compiled once a model is loaded, whatever requests ask for; and if something were, it would be counted."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from msgspec.structs import replace

from deployments.lm.quant.linear import Precision
from deployments.messages.errors import Unavailable
from deployments.verifier.watching import watch_programs
from tests.verifier.comparing import DRAFTERS, requests_for
from tests.verifier.conftest import LoadGolden
from tests.verifier.serving import Tallies, serve


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.F32])
def test_nothing_is_compiled_after_a_model_is_loaded(
    load_golden: LoadGolden, golden_llama: Path, precision: Precision
) -> None:
    model, tallies = load_golden(precision), Tallies()
    watch_programs(model.report, metrics=tallies)
    assert tallies.gauges["ladder_rungs"] == len(model.report.ladder.rungs)

    requests = requests_for(golden_llama)
    asking = [replace(request, request_id=f"l{i}", logprobs=i % 4) for i, request in enumerate(requests)]
    engine = model.engine(drafts=DRAFTERS["random"](Path()), metrics=tallies)
    serve(engine, [*requests, *asking])
    engine.submit(requests[0])
    engine.step()
    engine.fail_all(Unavailable("a window failed"))
    serve(engine, requests[:2])
    assert tallies.counters["late_compilations"] == 0

    jax.jit(lambda x: x * 3 - 1)(jnp.arange(17)).block_until_ready()
    assert tallies.counters["late_compilations"] > 0
