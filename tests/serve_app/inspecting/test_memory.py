from pathlib import Path

import jax
import pytest
from flax import nnx

from deployments.lm.cache.layout import CacheShape
from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.models.load import load_network, read_config
from deployments.lm.quant.linear import Precision
from serve_app.inspecting.memory import Memory, fits, memory_of


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.BF16, Precision.F32])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_weights_are_what_loading_takes(goldens: Path, name: str, precision: Precision) -> None:
    checkpoint = open_checkpoint(goldens / name)
    network = load_network(checkpoint, precision=precision)

    told = next(one for one in memory_of(checkpoint, layout=network.config.layout) if one.precision == precision)

    taken = sum({id(leaf): leaf.nbytes for leaf in jax.tree.leaves(nnx.state(network))}.values())
    assert told.weights == pytest.approx(taken, rel=0.01)


def test_cache_is_what_the_verifier_makes(golden_llama: Path) -> None:
    layout = read_config(open_checkpoint(golden_llama)).layout
    checkpoint = open_checkpoint(golden_llama)

    told = {one.precision: one for one in memory_of(checkpoint, layout=layout)}

    pages = CacheShape(layout=layout, pages=16, page_size=64)
    assert told["int8"].cache_per_1k == pages.nbytes(Precision.INT8.cache_dtype)
    assert told["f32"].cache_per_1k == pages.nbytes(Precision.F32.cache_dtype)
    assert told["int8"].state_per_request == 0


def memory(*, weights: int, cache: int | None = 10**6) -> tuple[Memory, ...]:
    return (Memory(precision="int8", weights=weights, cache_per_1k=cache, state_per_request=0 if cache else None),)


def test_devices() -> None:
    found = {fit.device: fit.tokens["int8"] for fit in fits(memory(weights=20 * 10**9), free_here=10**9)}

    assert found["this machine's memory now"] is None
    assert found["v5e x 1"] is None
    # A tenth stays free: 28.8 GB less 20 GB.
    assert found["v6e x 1"] == 8800
    assert found["v5e x 4"] == 37_600
    assert found["v5p x 8"] is not None
    assert found["v5p x 8"] > 600_000


def test_unknown_network_and_machine() -> None:
    found = {fit.device: fit.tokens["int8"] for fit in fits(memory(weights=10**9, cache=None), free_here=None)}

    assert "this machine's memory now" not in found
    assert set(found.values()) == {0}
