"""Shapes as they lie in memory, and the parts of a text."""

import pytest

from deployments.messages.errors import ConfigError
from serve_app.compiling.hlo import parse_module
from tests.serve_app.compiling import texts


def buffer_bytes(shape: str) -> int:
    text = f"{texts.HEADER}\n\nENTRY %main (x: f32[]) -> f32[] {{\n  ROOT %x = {shape} parameter(0)\n}}\n"
    return parse_module(text).entry.root.size


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[8,128]{1,0:T(8,128)}", 8 * 128 * 4),
        ("f32[8,100]{1,0:T(8,128)}", 8 * 128 * 4),
        ("f32[1]{0:T(128)}", 128 * 4),
        ("bf16[3,64]{1,0:T(8,128)(2,1)}", 8 * 128 * 2),
        ("bf16[129,2,3,128,64]{3,4,2,1,0:T(8,128)(2,1)}", 129 * 2 * 3 * 128 * 64 * 2),
        ("s8[2,128]{1,0:T(2,128)(4,1)}", 4 * 128),
        ("s8[89128960]{0:T(1024)(128)(4,1)}", 89128960),
        ("s4[64,256]{1,0:T(64,128)(8,1)E(4)}", 64 * 256 // 2),
        ("pred[]{:T(512)}", 512),
        ("(f32[8,128]{1,0:T(8,128)}, (s32[4], u8[6]))", 8 * 128 * 4 + 16 + 6),
        ("f8e4m3fn[16]", 16),
    ],
)
def test_tiles_pad(shape: str, size: int) -> None:
    assert buffer_bytes(shape) == size


def test_what_is_in_vmem_is_not_in_hbm() -> None:
    fetched = parse_module(texts.PREFETCH).entry.instructions["copy-start"]
    assert [buffer.hbm for buffer in fetched.buffers] == [0, 256 * 128, 0]


def test_arguments_whose_memory_is_taken_over() -> None:
    assert parse_module(texts.SCATTER).aliased == {0, 3}
    assert not parse_module(texts.PREFETCH).aliased


def test_source_files_innermost_first() -> None:
    module = parse_module(texts.SCATTER)
    files = module.sources(module.entry.instructions["scattered"])
    assert files == ("/src/deployments/lm/attention.py", "/src/deployments/lm/decoder.py")
    assert module.sources(module.entry.instructions["tuple"]) == ()


def test_attributes_end_where_their_brackets_do() -> None:
    one = parse_module(texts.EXCHANGES).entry.instructions["all-reduce.1"]
    assert one.attribute("replica_groups") == "{{0,1,2,3}}"
    assert one.attribute("to_apply") == "%max"
    assert one.attribute("groups") is None


def test_another_syntax_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="no entry computation"):
        parse_module("module @jit_f {\n}\n")
