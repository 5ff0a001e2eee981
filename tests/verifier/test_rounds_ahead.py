"""Calls of several windows as libtpu compiles them, for chips that are not here: one, and four that share the model."""

from pathlib import Path

import pytest

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.drafting.ngram import NgramSettings
from deployments.lm.kernels.choice import Kernels
from deployments.lm.mesh import make_mesh
from deployments.lm.models.load import outline_network
from deployments.lm.quant.linear import Precision
from deployments.lm.splitting import split_network
from deployments.lm.topologies import absent_devices
from deployments.verifier.blueprint import Blueprint
from deployments.verifier.calls import ChipSettings
from deployments.verifier.sizing import ModelSettings, fitted, sizes_for

pytest.importorskip("libtpu", reason="compiling for TPUs needs libtpu")


@pytest.mark.parametrize("topology", ["v6e:1x1x1", pytest.param("v5e:2x2x1", marks=pytest.mark.slow)])
def test_a_call_compiles_and_the_cache_stays_where_it_lies(topology: str, golden_llama_k256: Path) -> None:
    devices = absent_devices(topology)
    checkpoint = open_checkpoint(golden_llama_k256 / "llama_k256.Q8_0.gguf")
    network = outline_network(checkpoint, precision=Precision.INT8, kernels=Kernels.PALLAS)
    if len(devices) > 1:
        network = split_network(network, shards=len(devices), place=lambda leaf, split: leaf)
    chip = ChipSettings(drafter=NgramSettings(max_k=3), rounds=4)
    wanted = ModelSettings(
        model_path="", slots=8, context=512, page_size=64, draft_rows=8, ladder=(8, 64), cache_pages=600, chip=chip
    )
    settings = fitted(wanted, config=network.config)
    blueprint = Blueprint(network, sizes=sizes_for(settings, config=network.config), mesh=make_mesh(devices))
    assert blueprint.sizes.rounds is not None
    assert [size.rung.rows for size in blueprint.sizes.rounds.sizes] == [8, 64]

    counted = blueprint.rounds(blueprint.sizes.rounds.sizes[0]).compile().memory_analysis()
    assert counted is not None
    cache = blueprint.sizes.shape.nbytes(blueprint.sizes.cache_dtype) // len(devices)
    print(f"{counted.alias_size_in_bytes=} {cache=} {counted.temp_size_in_bytes=}")
    assert counted.alias_size_in_bytes >= cache
    # No layer of the cache is copied to go round the loop.
    assert counted.temp_size_in_bytes < cache / len(network.blocks)
