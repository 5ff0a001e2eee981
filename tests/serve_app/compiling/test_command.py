"""`outrider compile` as people start it: its errors here, a whole run among the slow tests."""

import json
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.slow
def test_drafts_on_the_chip_take_programs_of_their_own(tmp_path: Path) -> None:
    report = compile_model(options(written(tmp_path, TINY), context=64, draft_k=3, drafts_on_chip=True))
    assert report.is_sound
    assert [one.name for one in report.programs] == ["layers, 8 rows", "draw, 8 rows", "4 rounds, 8 rows"]


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
