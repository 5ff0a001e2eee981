"""The network against two peers' figures (`tests/data/golden`): logits, hidden states and greedy texts.

Every token goes through the programs that serve, in windows of 64 rows and pages of 32, so that prompts and texts
cross both. A text is greedy when each of its tokens has the largest logit after the ones before it.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from deployments.lm.attention import TILE_ROWS, Tiles
from deployments.lm.cache.pages import CacheShape
from deployments.lm.checkpoint.gguf import GgufFile
from deployments.lm.layers import rope_angles
from deployments.lm.models.llama.modeling import Llama, WindowRows
from deployments.lm.quant.linear import Precision
from deployments.verifier.programs import Programs
from tests.verifier.forcing import forced_logits, network, programs_for

F32_TOLERANCE = 2e-3
# Twice what transformers itself differs by between bf16 and f32, and its largest margin that flipped.
BF16_MEAN, BF16_MARGIN = 2 * 0.111, 0.26
QUANTISED = ("Q4_1", "Q6_K", "Q8_0")

type Reference = dict[str, np.ndarray]
type Load = Callable[[Path, Precision], Programs]


@pytest.fixture(scope="module")
def load() -> Load:
    """Programs of a file, compiled once."""

    @cache
    def make(path: Path, precision: Precision) -> Programs:
        return programs_for(
            network(str(path), precision=precision), precision=precision, rows=64, context=192, page_size=32
        )

    return make


def reference(path: Path) -> Reference:
    with np.load(path) as stored:
        return dict(stored)


def assert_agrees(programs: Programs, *, wanted: Reference, prompts: Reference) -> int:
    """Compares every position the reference has; says how many logit rows that were."""
    compared = 0
    for number in range(3):
        prompt, greedy = prompts[f"prompt_{number}"], wanted[f"greedy_{number}"]
        logits = forced_logits(programs, [*prompt.tolist(), *greedy.tolist()])
        rows = wanted[f"logits_{number}"]
        assert np.abs(logits[len(prompt) - len(rows) : len(prompt)] - rows).max() < F32_TOLERANCE
        np.testing.assert_array_equal(logits[len(prompt) - 1 : -1].argmax(axis=-1), greedy)
        compared += len(rows) + len(greedy)
    return compared


def test_f32_logits_and_texts_are_the_peers(load: Load, golden_llama: Path) -> None:
    wanted = reference(golden_llama / "ref.npz")

    assert assert_agrees(load(golden_llama / "llama.f16.gguf", Precision.F32), wanted=wanted, prompts=wanted) == 309


def test_rope_scaling_of_llama_3_is_the_peers(load: Load, golden_llama_rope3: Path) -> None:
    wanted = reference(golden_llama_rope3 / "ref.npz")
    programs = load(golden_llama_rope3 / "llama_rope3.f32.gguf", Precision.F32)

    assert assert_agrees(programs, wanted=wanted, prompts=wanted) == 309


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_files_are_the_peers(load: Load, golden_llama_k256: Path, kind: str) -> None:
    prompts = reference(golden_llama_k256 / "prompts.npz")
    wanted = reference(golden_llama_k256 / f"llama_k256.{kind}.ref.npz")
    programs = load(golden_llama_k256 / f"llama_k256.{kind}.gguf", Precision.F32)

    assert assert_agrees(programs, wanted=wanted, prompts=prompts) == 151


@pytest.mark.parametrize("kind", QUANTISED)
def test_tensors_are_dequantised_as_llama_cpp_does(golden_llama_k256: Path, kind: str) -> None:
    file = GgufFile(golden_llama_k256 / f"llama_k256.{kind}.gguf")
    rows = reference(golden_llama_k256 / f"llama_k256.{kind}.deq.npz")
    assert rows
    for name, values in rows.items():
        np.testing.assert_array_equal(file.tensor(name)[: len(values)], values)


def test_bf16_is_as_close_as_the_peers_bf16(load: Load, golden_llama: Path) -> None:
    wanted = reference(golden_llama / "ref.npz")
    programs = load(golden_llama / "llama.f16.gguf", Precision.BF16)
    for number in range(3):
        logits = forced_logits(programs, wanted[f"prompt_{number}"].tolist())
        rows = wanted[f"logits_{number}"]
        assert np.abs(logits - rows).mean() < BF16_MEAN
        second, first = np.sort(rows, axis=-1)[:, -2:].T
        clear = first - second > BF16_MARGIN
        assert clear.sum() >= len(rows) // 2
        np.testing.assert_array_equal(logits.argmax(axis=-1)[clear], rows.argmax(axis=-1)[clear])


def test_int8_stays_within_the_bf16_tolerance_and_plain_int8_costs_more(load: Load, golden_llama: Path) -> None:
    wanted = reference(golden_llama / "ref.npz")
    prompt, rows = wanted["prompt_2"].tolist(), wanted["logits_2"]
    two, one = (
        float(np.abs(forced_logits(load(golden_llama / "llama.f16.gguf", precision), prompt) - rows).mean())
        for precision in (Precision.INT8, Precision.INT8_PLAIN)
    )

    assert 0 < two < BF16_MEAN
    assert one > 1.25 * two


def streams(model: Llama, *, tokens: np.ndarray) -> list[np.ndarray]:
    """The residual stream before each layer, and after the final norm."""
    count = len(tokens)
    size = CacheShape(layers=1, pages=4, page_size=32, kv_heads=model.config.kv_heads, head_dim=model.config.head_dim)
    numbers = jnp.arange(count, dtype=jnp.int32)
    lanes = numbers.reshape(-1, TILE_ROWS)
    rows = WindowRows(
        tokens=jnp.asarray(tokens),
        positions=numbers,
        pages=1 + numbers // 32,
        offsets=numbers % 32,
        live=jnp.int32(len(tokens)),
    )
    pages = jnp.tile(jnp.asarray([1, 2, 3], jnp.int32), (len(lanes), 1))
    tiles = Tiles(rows=lanes, positions=lanes, pages=pages, lane_of_row=numbers)
    cosine, sine = rope_angles(numbers, frequencies=model.frequencies[...])
    found = [model.embedding(rows.tokens)]
    for block in model.blocks:
        (layer_cache,) = size.zeros(jnp.dtype(jnp.float32))
        found.append(block(found[-1], rows=rows, tiles=tiles, cache=layer_cache, cosine=cosine, sine=sine)[0])
    return [np.asarray(x) for x in (*found[:-1], model.norm(found[-1]))]


def test_every_layer_hands_on_the_peers_hidden_states(golden_llama: Path) -> None:
    """Features that trained drafters read; the last is after the final norm."""
    wanted = reference(golden_llama / "ref.npz")
    found = streams(network(str(golden_llama / "llama.f16.gguf"), precision=Precision.F32), tokens=wanted["prompt_1"])

    assert len(found) == len(wanted["hidden_1"]) == 9
    for layer, (left, right) in enumerate(zip(found, wanted["hidden_1"], strict=True)):
        assert np.abs(left - right).max() < F32_TOLERANCE, f"before layer {layer}"
