"""What a split network's programs exchange, read off what libtpu compiles for four and eight chips."""

import re
from collections import Counter
from pathlib import Path

import pytest

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.checkpoint.shape_file import ShapeFile
from deployments.lm.kernels.choice import Kernels
from deployments.lm.mesh import make_mesh
from deployments.lm.models.load import outline_network
from deployments.lm.quant.linear import Precision
from deployments.lm.splitting import split_network
from deployments.lm.topologies import absent_devices
from deployments.verifier.blueprint import Blueprint
from deployments.verifier.sizing import ModelSettings, fitted, sizes_for
from serve_app import compiling

pytest.importorskip("libtpu", reason="compiling for TPUs needs libtpu")

_LAYERS = 2
_EXCHANGE = re.compile(r"%\w*?(psum|pmax|pmin|all.gather)[\w.]* = \S+ (all-reduce|all-gather)(?:-start)?\(")
_ANY = re.compile(r" (?:all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


def _blueprint(folder: Path, *, topology: str) -> Blueprint:
    """Of a llama of two layers whose heads are 64 wide."""
    devices = absent_devices(topology)
    checkpoint = open_checkpoint(folder / "llama_k256.Q8_0.gguf")
    whole = outline_network(checkpoint, precision=Precision.INT8, kernels=Kernels.PALLAS)
    network = split_network(whole, shards=len(devices), place=lambda leaf, split: leaf)
    wanted = ModelSettings(model_path="", slots=8, context=512, page_size=64, ladder=(8, 64))
    settings = fitted(wanted, config=network.config)
    return Blueprint(network, sizes=sizes_for(settings, config=network.config), mesh=make_mesh(devices))


def _llama_8b(folder: Path, *, topology: str, rows: int) -> Blueprint:
    """Of four layers of Llama-3.1-8B, which are all alike."""
    path = folder / "four.yaml"
    text = (Path(compiling.__file__).parent / "shapes" / "llama-3.1-8b.yaml").read_text()
    path.write_text(text.replace("layers: 32", "layers: 4").replace("128256", "2048"))
    devices = absent_devices(topology)
    whole = outline_network(ShapeFile(path), precision=Precision.INT8, kernels=Kernels.PALLAS)
    network = split_network(whole, shards=len(devices), place=lambda leaf, split: leaf)
    wanted = ModelSettings(model_path="", slots=8, context=2048, page_size=64, ladder=(rows,))
    settings = fitted(wanted, config=network.config)
    return Blueprint(network, sizes=sizes_for(settings, config=network.config), mesh=make_mesh(devices))


def _exchanges(hlo: str) -> Counter[str]:
    found = Counter(match.group(1).replace("_", "-") for match in _EXCHANGE.finditer(hlo))
    assert found.total() == len(_ANY.findall(hlo)), "the compiler made exchanges of its own"
    return found


@pytest.mark.parametrize("topology", ["v5e:2x2x1", "v6e:2x4x1"])
def test_a_layer_exchanges_two_sums_and_two_maxima(topology: str, golden_llama_k256: Path) -> None:
    """And the embedding one more sum; the cache stays where it lies."""
    blueprint = _blueprint(golden_llama_k256, topology=topology)
    assert blueprint.mesh is not None
    compiled = blueprint.body(blueprint.sizes.ladder.rungs[0]).compile()
    assert _exchanges(compiled.as_text() or "") == {"psum": 2 * _LAYERS + 1, "pmax": 2 * _LAYERS}
    counted = compiled.memory_analysis()
    assert counted is not None
    cache = blueprint.sizes.shape.nbytes(blueprint.sizes.cache_dtype)
    assert counted.alias_size_in_bytes >= cache // blueprint.mesh.size
    # What is new is the hidden rows.
    fresh = counted.output_size_in_bytes - counted.alias_size_in_bytes
    assert fresh < 2 * blueprint.hidden_taken.size * 4


@pytest.mark.parametrize(
    ("topology", "rows"),
    [
        ("v5e:2x4x1", 8),
        pytest.param("v6e:2x4x1", 64, marks=pytest.mark.slow),
        pytest.param("tpu7x:2x2x1", 64, marks=pytest.mark.slow),
    ],
)
def test_little_is_needed_beside_a_devices_share(topology: str, rows: int, tmp_path: Path) -> None:
    """Neither for weights that are fetched ahead nor for what is exchanged."""
    blueprint = _llama_8b(tmp_path, topology=topology, rows=rows)
    assert blueprint.mesh is not None
    counted = blueprint.body(blueprint.sizes.ladder.rungs[0]).compile().memory_analysis()
    assert counted is not None
    weights = sum(leaf.size * leaf.dtype.itemsize for leaf in blueprint.weights) // blueprint.mesh.size
    assert counted.temp_size_in_bytes < 0.03 * weights


@pytest.mark.slow
def test_a_draw_gathers_logits_only_on_demand(golden_llama_k256: Path) -> None:
    """The most likely token, and drawn ones, are found share by share: one number and one token per row travel."""
    blueprint = _blueprint(golden_llama_k256, topology="v5e:2x2x1")
    hlo = blueprint.emit(blueprint.sizes.ladder.emits[0]).compile().as_text() or ""
    found = _exchanges(hlo)
    # One where somebody truncates, one where somebody wants log-probabilities: both inside branches.
    assert found["all-gather"] == 2
    entry = hlo[hlo.index("\nENTRY ") :]
    assert "all-gather" not in entry[: entry.index("\n}")]
