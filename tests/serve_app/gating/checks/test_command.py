"""`outrider gate run` from its options to the store."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deployments.messages.errors import ConfigError
from deployments.verifier.loading import LoadedModel, load_model
from deployments.verifier.programs import Progress
from deployments.verifier.sizing import ModelSettings
from serve_app.cli import app
from serve_app.gating.app_file import read_app_config
from serve_app.gating.checks import command
from serve_app.gating.checks.check import Outcome
from serve_app.gating.checks.command import parse_kinds, parse_numbers, save
from serve_app.gating.checks.judging import failed_profit
from serve_app.gating.encoding import decode_gates
from serve_app.gating.file_store import FileStore
from serve_app.gating.gatekeeper import StoreGatekeeper
from serve_app.gating.opening import StoreSettings
from serve_app.gating.records import Verdict
from serve_app.gating.store import GateStoreError
from tests.serve_app.gating.benches import eventually
from tests.serve_app.gating.making import MEASURED, exactness, profit, profit_key

CONFIG = """
drafter: {kind: ngram, min_n: 1}
verifier:
  {slots: 2, context: 256, precision: f32, kernels: xla, draft_k: 3, ladder: [8, 16], compile_cache: "",
   draft_deadline_ms: 1000}
"""
ROOT = Path(__file__).parents[4]


def test_the_whole_command_decides_and_keeps_its_decision(
    golden_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[ModelSettings, LoadedModel]] = []

    def noted(settings: ModelSettings, *, progress: Progress) -> LoadedModel:
        loaded.append((settings, load_model(settings, progress=progress)))
        return loaded[-1][1]

    monkeypatch.setattr(command, "load_model", noted)
    config, store, picture = tmp_path / "app.yaml", tmp_path / "gates.yaml", tmp_path / "gain.png"
    config.write_text(CONFIG)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one two one two one two one two\nthree four three four three four\n")
    pytest.importorskip("matplotlib")
    words = ["gate", "run", str(golden_llama / "llama.f16.gguf"), "--config", str(config), "--store", f"file:{store}"]
    words += ["--prompts", str(prompts), "--tokens", "32", "--slots", "1,4", "--quick", "--plot", str(picture)]
    done = CliRunner().invoke(app, words)
    gates = decode_gates(store.read_bytes())
    (exact,) = gates.exactness
    (pays,) = gates.profit
    assert exact.verdict is Verdict.PASS, exact.detail
    assert exact.evidence.drafters["ngram"].drafts > 0
    assert pays.verdict is not Verdict.DID_NOT_RUN, pays.detail
    assert [point.active for point in pays.evidence.points] == [1]
    assert pays.evidence.points[0].rounds > 0
    assert pays.key.program == exact.key
    assert done.exit_code == (0 if pays.has_passed else 1)
    assert "profit of ngram" in done.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    # What a verifier of this deployment asks for is what was measured.
    deployed = read_app_config(config, model=words[2])
    settings = deployed.gate_settings()
    ((asked, model),) = loaded
    assert replace(asked, model_path="") == replace(deployed.verifier_settings().model, model_path="")
    watch = StoreGatekeeper(settings=replace(settings, store=StoreSettings(url=f"file:{store}")))(model.facts())
    (candidate,) = watch.report().candidates
    watch.close()
    assert (candidate["exactness"]["id"], candidate["profit"]["id"]) == (exact.id, pays.id)
    listed = CliRunner().invoke(app, ["gate", "list", *words[2:5], "--store", f"file:{store}"])
    assert listed.output.count("applies here as far as can be seen") == 2
    other = CliRunner().invoke(app, ["gate", "list", words[2], "--store", f"file:{store}"])
    assert other.output.count("does not apply here") == 2
    assert "slots 2 != 8" in other.output


@pytest.mark.parametrize(
    "part", ["comparing tokens, sampled", pytest.param("1 active slot, choosing K", marks=pytest.mark.slow)]
)
def test_ctrl_c_leaves_nothing(part: str, golden_llama: Path, tmp_path: Path) -> None:
    """In the middle of either check, the second with all of exactness known and a drafter at work."""
    config, store, prompts = tmp_path / "app.yaml", tmp_path / "gates.yaml", tmp_path / "prompts.txt"
    config.write_text(CONFIG)
    prompts.write_text("one two one two one two one two\nthree four three four three four\n")
    words = ["gate", "run", str(golden_llama / "llama.f16.gguf"), "--config", str(config), "--store", f"file:{store}"]
    with subprocess.Popen(
        [sys.executable, "-m", "serve_app.cli", *words, "--prompts", str(prompts), "--slots", "1,2"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As a terminal has it: Ctrl-C reaches the drafter's process too.
        start_new_session=True,
    ) as running:
        assert running.stderr is not None
        assert any(part in line for line in running.stderr), "it ended before that"
        os.killpg(running.pid, signal.SIGINT)
        said, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert "stopped; nothing was written" in errors
    assert said == ""
    assert not list(tmp_path.glob("*gates.yaml*"))
    eventually(lambda: not _is_there(running.pid))


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_error_takes_no_measurement_s_place(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "gates.yaml")
    failed = failed_profit(ValueError("gone"), key=profit_key(), measured=MEASURED)
    save(Outcome(exactness=exactness(), profits=(failed,)), store=store)
    assert store.snapshot.profit == (failed,)
    save(Outcome(exactness=exactness(), profits=(profit(),)), store=store)
    save(Outcome(exactness=exactness(), profits=(failed,)), store=store)
    assert store.snapshot.profit == (profit(),)


def test_what_cannot_be_written_is_not_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gates.yaml").mkdir()
    with pytest.raises(GateStoreError):
        save(Outcome(exactness=exactness(), profits=(profit(),)), store=FileStore(tmp_path / "gates.yaml"))
    printed = decode_gates(capsys.readouterr().out.encode())
    assert (printed.exactness, printed.profit) == ((exactness(),), (profit(),))


def test_numbers_rise_and_kinds_come_once() -> None:
    assert parse_numbers("8, 1,2,2") == (1, 2, 8)
    assert parse_kinds("ngram, ngram") == ("ngram",)
    for wrong in ("", "0", "1,,2", "-1", "two"):
        with pytest.raises(ConfigError, match="--slots"):
            parse_numbers(wrong)
