"""`outrider gate run` from its options to the store."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from deployments.messages.errors import ConfigError
from serve_app.cli import app
from serve_app.gating.checks.check import Outcome
from serve_app.gating.checks.command import parse_kinds, parse_numbers, save
from serve_app.gating.checks.judging import failed_profit
from serve_app.gating.encoding import decode_gates
from serve_app.gating.file_store import FileStore
from serve_app.gating.records import Verdict
from serve_app.gating.store import GateStoreError
from tests.serve_app.gating.making import MEASURED, exactness, profit, profit_key

CONFIG = """
drafter: {kind: ngram, min_n: 1}
verifier: {slots: 2, context: 256, precision: f32, kernels: xla, draft_k: 3, ladder: [8, 16], compile_cache: ""}
"""


def test_the_whole_command_decides_and_keeps_its_decision(golden_llama: Path, tmp_path: Path) -> None:
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
    listed = CliRunner().invoke(app, ["gate", "list", *words[2:5], "--store", f"file:{store}"])
    assert listed.output.count("applies here as far as can be seen") == 2
    other = CliRunner().invoke(app, ["gate", "list", words[2], "--store", f"file:{store}"])
    assert other.output.count("does not apply here") == 2
    assert "slots 2 != 8" in other.output


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
