"""`outrider compile` as people start it: its errors here, a whole run among the slow tests."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from deployments.messages.errors import OutriderError
from serve_app.compiling.command import CompileOptions, compile_model

TINY: dict[str, object] = {
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def written(folder: Path, numbers: dict[str, object]) -> str:
    """A file with this shape."""
    file = folder / "shape.json"
    file.write_text(json.dumps(numbers))
    return str(file)


def options(
    model: str,
    *,
    chip: str = "v6e-1",
    slots: int = 8,
    context: int = 2048,
    draft_k: int = 0,
    drafts_on_chip: bool = False,
) -> CompileOptions:
    return CompileOptions(
        chip=chip,
        model=model,
        precision="int8",
        slots=slots,
        context=context,
        draft_k=draft_k,
        drafts_on_chip=drafts_on_chip,
        ladder=(8,),
    )


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (options("smollm2-135m", chip="v9-1"), "'v9-1' is no slice that is known here; --chip is one of v5e-1"),
        (
            options("nowhere.yaml"),
            "there is no file nowhere.yaml; --model is a model, a name, or a file with the shape",
        ),
        (options("smollm2-135m", context=1 << 20), "the model was made for 8192; lower --ctx"),
        (options("smollm2-135m", drafts_on_chip=True), "--draft-k 0 drafts nothing; leave out one of them"),
    ],
)
def test_mistakes_are_a_sentence(wanted: CompileOptions, sentence: str) -> None:
    with pytest.raises(OutriderError) as raised:
        compile_model(wanted)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_has_no_room_is_not_compiled(tmp_path: Path) -> None:
    wide = TINY | {"hidden_size": 16384, "intermediate_size": 262144, "num_hidden_layers": 3}
    report = compile_model(options(written(tmp_path, wide)))
    assert not report.is_sound
    assert not report.fit.fits
    assert not report.programs
    assert "v5p-1" in report.would_hold
    assert "v6e-1" not in report.would_hold


def test_a_cache_that_is_too_large_says_how_much_would_fit(tmp_path: Path) -> None:
    many = TINY | {"num_key_value_heads": 128, "num_attention_heads": 128, "max_position_embeddings": 131072}
    report = compile_model(options(written(tmp_path, many), context=131072))
    assert not report.fit.fits
    assert 0 < report.fit.context < 131072
    assert 0 < report.fit.slots < 8


@pytest.mark.parametrize("count", [-3, 0, 10**15, None])
def test_a_vocabulary_that_no_network_has(tmp_path: Path, count: int | None) -> None:
    model = written(tmp_path, {**TINY, "vocab_size": count})
    with pytest.raises(OutriderError, match="vocab_size"):
        compile_model(options(model))


def test_sizes_that_no_array_has(tmp_path: Path) -> None:
    """What was allowed once took all of the memory before anything was said."""
    with pytest.raises(OutriderError, match="num_attention_heads is 2147483648, which is not from 1 to 16777216"):
        compile_model(options(written(tmp_path, TINY | {"num_attention_heads": 2**31, "head_dim": 2**31})))
    report = compile_model(options(written(tmp_path, TINY | {"num_attention_heads": 2**24, "head_dim": 2**24})))
    assert not report.fit.fits
    assert report.would_hold == ()


def test_names_longer_than_any_files_and_suffixes_in_capitals(tmp_path: Path) -> None:
    for name in ("x" * 5000, "x" * 5000 + ".json"):
        with pytest.raises(OutriderError) as raised:
            compile_model(options(name))
        assert "\n" not in str(raised.value)
    loud = Path(written(tmp_path, TINY)).rename(tmp_path / "SHAPE.JSON")
    with pytest.raises(OutriderError, match="lower --ctx"):
        compile_model(options(str(loud), context=1 << 20))


def test_slices_that_would_hold_what_does_not_split_have_one_device(tmp_path: Path) -> None:
    experts = {"num_experts": 64, "num_experts_per_tok": 2, "moe_intermediate_size": 16384, "norm_topk_prob": True}
    model = written(tmp_path, {**TINY, "model_type": "qwen3_moe", "hidden_size": 8192, **experts})
    report = compile_model(options(model, chip="v5e-1"))
    assert not report.fit.fits
    assert report.would_hold == ("v5p-1", "v6e-1")


def run_tiny(tmp_path: Path, *more: str, out: int | IO[str] = subprocess.PIPE) -> "subprocess.Popen[str]":
    command = ("-m", "serve_app.cli", "compile", "--chip", "v5e-1", "--model", written(tmp_path, TINY), *more)
    return subprocess.Popen([sys.executable, *command], text=True, stdout=out, stderr=subprocess.PIPE)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_it_ends_when_it_is_told_to(tmp_path: Path, number: signal.Signals) -> None:
    """At once, though programs wait to be compiled; in one sentence, and however often it is told."""
    process = run_tiny(tmp_path)
    assert process.stderr is not None
    assert "compiled in" in process.stderr.readline()
    for _ in range(3):
        process.send_signal(number)
    out, errors = process.communicate(timeout=10)
    assert process.returncode == 128 + number
    assert out == ""
    assert errors.count("outrider: stopped before everything was compiled") == 1
    assert "Traceback" not in errors


@pytest.mark.slow
def test_a_report_that_nobody_can_take(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        process = run_tiny(tmp_path, "--draft-k", "0", "--ctx", "64", "--json", out=full)
        _, errors = process.communicate()
    assert process.returncode == 1
    assert errors.splitlines()[-1].startswith("outrider: the report cannot be written to standard output (")


@pytest.mark.parametrize("more", [{"head_dim": 80}, pytest.param({"head_dim": 64}, marks=pytest.mark.slow)], ids=str)
def test_layers_that_the_kernel_cannot_serve_compile_too(tmp_path: Path, more: dict[str, object]) -> None:
    """Heads of 80; and pages of 24 positions, as a context of 24 has."""
    report = compile_model(options(written(tmp_path, TINY | more), context=24))
    assert [one.refusal for one in report.programs] == [None, None]


@pytest.mark.slow
def test_drafts_on_the_chip_take_programs_of_their_own(tmp_path: Path) -> None:
    report = compile_model(options(written(tmp_path, TINY), context=64, draft_k=3, drafts_on_chip=True))
    assert report.is_sound
    assert [one.name for one in report.programs] == ["layers, 8 rows", "draw, 8 rows", "4 rounds, 8 rows"]
    # Of the widest window: there is room for thousands.
    assert report.fit.slots == 8


@pytest.mark.slow
def test_the_command_prints_json_and_its_status(tmp_path: Path) -> None:
    model = written(tmp_path, TINY)
    command = ("-m", "serve_app.cli", "compile", "--chip", "v5e-1", "--model", model, "--draft-k", "0", "--json")
    done = subprocess.run([sys.executable, *command, "--ctx", "64"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["estimate"]
    assert found["fit"]["fits"]
    assert all(one["refusal"] is None for one in found["programs"])
    assert {one["rows"] for one in found["estimates"]} == {8, 16, 32, 64, 128}
    assert found["speeds"][0]["all"] > found["speeds"][0]["one"] > 0
