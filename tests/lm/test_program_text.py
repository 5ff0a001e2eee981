"""Fingerprints of real lowered programs: lines may move, operations may not change."""

import textwrap
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from deployments.lm.program_text import program_fingerprint, without_locations

SOURCE = """
def inner(x, w):
    return jnp.tanh(x @ w)

def run(x, w):
    with jax.named_scope("loc(1)"):
        return jax.lax.fori_loop(0, 3, lambda _, y: inner(y, w), x) + 1.5
"""
KERNEL = """
def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2 + jnp.exp(x_ref[...])

def run(x, w):
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""


def lowered(source: str, *, name: str = "here.py", platform: str = "cpu") -> Any:
    scope: dict[str, Any] = {"jnp": jnp, "jax": jax, "pl": pl}
    exec(compile(textwrap.dedent(source), name, "exec"), scope)
    struct = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    square = jax.ShapeDtypeStruct((128, 128), jnp.float32)
    return jax.jit(scope["run"]).trace(struct, square).lower(lowering_platforms=(platform,))


def plain(program: Any) -> str:
    text: str = program.as_text()
    return text


def with_locations(program: Any) -> str:
    text: str = program.as_text(debug_info=True)
    return text


@pytest.mark.parametrize("text_of", [plain, with_locations])
@pytest.mark.parametrize(("source", "platform"), [(SOURCE, "cpu"), (KERNEL, "tpu")])
def test_moved_lines_count_for_nothing(source: str, platform: str, text_of: Callable[[Any], str]) -> None:
    here = text_of(lowered(source, platform=platform))
    shifted = "\n\n# moved\n" + source.replace("\ndef run", "\n\n\n# and further\ndef run")
    moved = text_of(lowered(shifted, name="there.py", platform=platform))
    if text_of is with_locations or platform == "tpu":
        assert here != moved
    assert program_fingerprint([here]) == program_fingerprint([moved])


@pytest.mark.parametrize(("old", "new"), [("tanh", "sin"), ("1.5", "1.25"), ("0, 3", "0, 4"), ("x @ w", "x @ w.T")])
def test_a_changed_operation_counts(old: str, new: str) -> None:
    here, other = plain(lowered(SOURCE)), plain(lowered(SOURCE.replace(old, new)))
    assert program_fingerprint([here]) != program_fingerprint([other])


def test_a_changed_kernel_counts() -> None:
    here, other = (lowered(text, platform="tpu") for text in (KERNEL, KERNEL.replace("* 2", "* 3")))
    assert program_fingerprint([plain(here)]) != program_fingerprint([plain(other)])


def test_locations_are_taken_out_whole() -> None:
    program = lowered(SOURCE)
    assert "#loc" in with_locations(program)
    assert without_locations(with_locations(program)) == without_locations(plain(program))


def test_what_looks_like_a_location_in_a_string_stays() -> None:
    line = '%0 = custom_call @f {note = "loc(#loc1) \\" metadata={a}", n = 1 : i32} loc("a)b"("c.py":1:2 to :3))'
    assert without_locations(line) == '%0 = custom_call @f {note = "loc(#loc1) \\" metadata={a}", n = 1 : i32}'


def test_metadata_of_hlo_is_taken_out() -> None:
    line = '%add = f32[4]{0} add(%a, %b), metadata={op_name="jit(f)/{add}" source_line=3}, backend_config={"a":"{"}'
    assert without_locations(line) == '%add = f32[4]{0} add(%a, %b), backend_config={"a":"{"}'


def test_the_order_of_programs_counts_for_nothing_and_their_number_does() -> None:
    assert program_fingerprint(["a", "b"]) == program_fingerprint(["b", "a"])
    assert program_fingerprint(["a"], options={}) == program_fingerprint(["a"])
    many: tuple[dict[str, str], ...] = ({"x": "1"}, {"x": "2"}, {"y": "1"}, {"x": "1", "y": "1"}, {})
    assert len({program_fingerprint(["a"], options=options) for options in many}) == 5
    assert program_fingerprint(["a"], options={"x": "1", "y": "2"}) == program_fingerprint(
        ["a"], options={"y": "2", "x": "1"}
    )
    assert len({program_fingerprint(texts) for texts in (["a", "b"], ["ab"], ["a"], ["a", "a"], [])}) == 5
