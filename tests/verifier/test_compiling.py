"""A compiler that refuses a program: what needs it is not used, and says why; nothing else is lost."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from deployments.lm.mesh import make_mesh
from deployments.lm.quant.linear import Precision
from deployments.lm.topologies import absent_devices
from deployments.messages.errors import ConfigError
from deployments.verifier import compiling
from deployments.verifier.blueprint import Blueprint
from deployments.verifier.compiling import Unbuilt, compile_all, options_for, temporaries, unknown_options
from deployments.verifier.loading import LoadedModel
from deployments.verifier.probe import probe
from deployments.verifier.programs import Programs
from deployments.verifier.window import Rung
from tests.verifier.comparing import DRAFTERS, alone, compared, requests_for, run, write_oracle
from tests.verifier.conftest import LoadGolden


def refused_program() -> jax.stages.Lowered:
    """Lowers, but no compiler here has what it calls."""
    call = jax.ffi.ffi_call("outrider_no_such_target", jax.ShapeDtypeStruct((2,), jnp.float32))
    return jax.jit(lambda x: call(x)).lower(jax.ShapeDtypeStruct((2,), jnp.float32))


class Partly(Blueprint):
    """A blueprint of which some programs do not compile: windows and draws of more rows than `most`."""

    def __init__(self, whole: Blueprint, *, most_rows: int, most_emits: int = 1024) -> None:
        self.__dict__ = dict(whole.__dict__)
        self._most_rows = most_rows
        self._most_emits = most_emits

    def body(self, rung: Rung, /) -> jax.stages.Lowered:
        return super().body(rung) if rung.rows <= self._most_rows else refused_program()

    def emit(self, size: int, /) -> jax.stages.Lowered:
        return super().emit(size) if size <= self._most_emits else refused_program()


@pytest.fixture(scope="module")
def model(load_golden: LoadGolden) -> LoadedModel:
    return load_golden(Precision.INT8)


def programs_of(model: LoadedModel, said: list[str], **most: Any) -> Programs:
    return Programs(Partly(model.programs._blueprint, **most), progress=said.append)


def test_one_that_is_refused_does_not_keep_others_back() -> None:
    said: list[str] = []
    right = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((2,), jnp.float32))
    built = compile_all({"wrong": refused_program(), "right": right}, progress=said.append)
    assert built["right"](jnp.zeros(2, jnp.float32)).tolist() == [1, 1]
    wrong = built["wrong"]
    assert isinstance(wrong, Unbuilt)
    assert temporaries(wrong) == 0
    with pytest.raises(RuntimeError, match=r"it does not compile .*outrider_no_such_target"):
        wrong(jnp.zeros(2))
    assert said[0] == "compiled 1 of 2 programs"
    assert said[1].startswith("wrong: it does not compile")


@pytest.mark.slow
def test_replies_without_the_windows_that_did_not_compile_are_the_same(
    model: LoadedModel, golden_llama: Path, tmp_path: Path
) -> None:
    programs = programs_of(model, [], most_rows=8)
    report = probe(programs, vocabulary=model.config.vocabulary, progress=lambda text: None)
    assert [rung.rows for rung in report.ladder.rungs] == [8]
    assert {rung.rows for rung in report.refused} == {16, 32}
    assert all("does not compile" in reason for reason in report.refused.values())

    requests = requests_for(golden_llama)
    plain = alone(model, requests)
    oracle = write_oracle(tmp_path / "oracle.json", requests=requests, replies=plain)
    narrow = replace(model, programs=programs, report=report)
    found = run(narrow, requests, drafts=DRAFTERS["oracle"](oracle))
    assert compared(plain, found) > 300
    assert sum(reply.statistics.draft_n_accepted for reply in found.values()) > 0


def test_draws_that_did_not_compile_take_their_windows_along(model: LoadedModel) -> None:
    programs = programs_of(model, [], most_rows=1024, most_emits=8)
    report = probe(programs, vocabulary=model.config.vocabulary, progress=lambda text: None)
    assert [rung.rows for rung in report.ladder.rungs] == [8]


def test_without_the_smallest_window_nothing_can_be_served(model: LoadedModel) -> None:
    with pytest.raises(ConfigError, match="cannot run the model: of the smallest window it does not compile"):
        programs_of(model, [], most_rows=4)


def test_only_programs_of_tpus_have_options_of_theirs() -> None:
    assert options_for(None) is None
    assert options_for(make_mesh(jax.devices()[:1])) is None
    options = options_for(make_mesh(absent_devices("v6e:1x1x1")))
    assert options
    compiled = jax.jit(lambda x: x + 1, compiler_options=options).lower(
        jax.ShapeDtypeStruct(
            (8, 128), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(absent_devices("v6e:1x1x1")[0])
        )
    )
    assert compiled.compile().as_text()
    assert not unknown_options(make_mesh(absent_devices("v6e:1x1x1")))
    # The compiler looks at them: it knows no others.
    with pytest.raises(RuntimeError, match="xla_tpu_no_such_option"):
        compiled.compile(compiler_options={"xla_tpu_no_such_option": "1"})


def test_an_option_that_the_compiler_has_not_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the compiler's own, and may be gone in its next version."""
    mesh = make_mesh(absent_devices("v5p:1x1x1"))
    known = options_for(mesh)
    assert known
    monkeypatch.setattr(compiling, "_TPU_OPTIONS", {**known, "xla_tpu_no_such_option": "1"})
    compiling._known.cache_clear()
    try:
        assert options_for(mesh) == known
        assert unknown_options(mesh) == {"xla_tpu_no_such_option"}
    finally:
        compiling._known.cache_clear()
