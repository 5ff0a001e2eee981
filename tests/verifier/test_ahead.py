"""Programs compiled for chips that are not here, by the compiler that serves there: what they take, and what fails.

Numbers of bytes are the compiler's own. The table of whole models is `outrider compile`'s.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from deployments.lm.checkpoint.shape_file import ShapeFile
from deployments.lm.kernels.choice import Kernels
from deployments.lm.mesh import make_mesh
from deployments.lm.models.load import outline_network
from deployments.lm.quant.linear import Precision
from deployments.lm.topologies import absent_devices
from deployments.verifier.ahead import CompiledProgram, FailedProgram, compile_for
from deployments.verifier.blueprint import Blueprint, ProgramKey
from deployments.verifier.sizing import ModelSettings, fitted, sizes_for
from deployments.verifier.window import Rung
from serve_app import compiling

SHAPES = Path(compiling.__file__).parent / "shapes"
CHIPS = ("v5e", "v5p", "v6e")
LADDER = (8, 16, 32, 64, 128)
# What may be needed beside the weights, of networks with a billion or more.
MOST_TEMPORARIES = 0.03


def cut(folder: Path, *, vocabulary: int = 128_256) -> Path:
    """Llama-3.1-8B with two of its layers, which are all alike."""
    text = (SHAPES / "llama-3.1-8b.yaml").read_text()
    path = folder / "two.yaml"
    path.write_text(text.replace("layers: 32", "layers: 2").replace("128256", str(vocabulary)))
    return path


def blueprint(
    shape: Path,
    *,
    chip: str,
    ladder: tuple[int, ...],
    draft_k: int = 0,
    emits: tuple[int, ...] | None = None,
    precision: Precision = Precision.INT8,
    pages: int | None = None,
) -> Blueprint:
    network = outline_network(ShapeFile(shape), precision=precision, kernels=Kernels.PALLAS)
    settings = ModelSettings(
        model_path=str(shape),
        precision=precision,
        kernels=Kernels.PALLAS,
        ladder=ladder,
        draft_k=draft_k,
        cache_pages=pages,
    )
    sizes = sizes_for(fitted(settings, config=network.config), config=network.config)
    if emits is not None:
        sizes = replace(sizes, ladder=replace(sizes.ladder, emits=emits))
    return Blueprint(network, sizes=sizes, mesh=make_mesh(absent_devices(f"{chip}:1x1x1")))


def compiled(plan: Blueprint) -> dict[ProgramKey, CompiledProgram]:
    """All programs, none of which may fail."""
    found = compile_for(plan)
    assert {key: program for key, program in found.items() if isinstance(program, FailedProgram)} == {}
    return {key: program for key, program in found.items() if isinstance(program, CompiledProgram)}


def nbytes(leaves: list[jax.ShapeDtypeStruct]) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def assert_frugal(plan: Blueprint, programs: dict[ProgramKey, CompiledProgram]) -> None:
    """The cache is the same memory before and after, and little is needed beside it and the weights."""
    cache = plan.sizes.shape.nbytes(plan.sizes.cache_dtype)
    for key, program in programs.items():
        if isinstance(key, Rung):
            # A few of its arrays may be filled up to whole tiles.
            assert cache <= program.memory.aliased < 1.01 * cache
        assert program.memory.temporaries < MOST_TEMPORARIES * nbytes(plan.weights)
        assert program.flops > 0


@pytest.mark.parametrize(
    ("chip", "ladder", "emits"), [("v5e", (8,), (8,)), ("v5p", (8,), ()), ("v6e", (8,), ())], ids=CHIPS
)
def test_smollm2_compiles(chip: str, ladder: tuple[int, ...], emits: tuple[int, ...]) -> None:
    plan = blueprint(SHAPES / "smollm2-135m.yaml", chip=chip, ladder=ladder, emits=emits)
    said: list[str] = []
    found = compile_for(plan, progress=said.append)

    assert [key.rows if isinstance(key, Rung) else key for key in found] == [*ladder, *emits]
    assert len(said) == len(found)
    cache = plan.sizes.shape.nbytes(plan.sizes.cache_dtype)
    for key, program in found.items():
        assert isinstance(program, CompiledProgram), program
        assert "ENTRY" in program.hlo_text
        assert program.memory.aliased >= (cache if isinstance(key, Rung) else 0)
        # Small layers beside fixed buffers: the bound of larger networks is not for it.
        assert program.memory.temporaries < 0.15 * nbytes(plan.weights)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.W8A16])
def test_int8_weights_are_never_written_out_wider(tmp_path: Path, precision: Precision) -> None:
    plan = blueprint(cut(tmp_path), chip="v5e", ladder=(8,), emits=(), precision=precision)
    programs = compiled(plan)
    assert_frugal(plan, programs)
    head: Any = plan.head(8).compile().memory_analysis()

    narrowest = 4_096 * 4_096
    assert max(head.temp_size_in_bytes, *(program.memory.temporaries for program in programs.values())) < narrowest / 2


def test_a_program_that_fails_is_a_sentence_and_the_others_are_compiled(tmp_path: Path) -> None:
    plan = blueprint(cut(tmp_path, vocabulary=1_024), chip="v5e", ladder=(8,), pages=40_000)
    failed, drawn = compile_for(plan).values()

    assert isinstance(failed, FailedProgram)
    assert "memory" in failed.reason
    assert "\n" not in failed.reason
    assert isinstance(drawn, CompiledProgram)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", ["llama-3.2-1b", "llama-3.1-8b", "qwen3-8b"])
def test_every_program_compiles(name: str, chip: str) -> None:
    plan = blueprint(SHAPES / f"{name}.yaml", chip=chip, ladder=LADDER, draft_k=3)

    assert_frugal(plan, compiled(plan))


def test_a_second_compilation_does_not_read_the_cache_of_the_first(tmp_path: Path) -> None:
    """A cache of compiled programs cannot be read for devices that are not here."""
    plan = blueprint(cut(tmp_path, vocabulary=2048), chip="v6e", ladder=(8,), emits=(8,))
    before = jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()
    try:
        for _ in range(2):
            compiled(plan)
        assert not (tmp_path / "cache").exists() or not any((tmp_path / "cache").iterdir())
        # Others find theirs where it was.
        jax.jit(lambda x: x * 3 + 1).lower(jax.ShapeDtypeStruct((7,), jnp.float32)).compile()
        assert any((tmp_path / "cache").iterdir())
    finally:
        jax.config.update("jax_compilation_cache_dir", before[0])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", before[1])
        compilation_cache.reset_cache()
