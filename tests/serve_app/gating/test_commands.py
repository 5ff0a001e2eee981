"""`outrider gate` as it is typed, with stores of both kinds."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from serve_app.cli import app
from serve_app.gating.encoding import decode_gates
from serve_app.gating.opening import StoreSettings, open_store
from serve_app.gating.records import Setting
from tests.serve_app.gating.benches import RedisBench
from tests.serve_app.gating.making import exactness, profit


@pytest.fixture(params=["file", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file:{tmp_path / 'gates.yaml'}"
    bench: RedisBench = request.getfixturevalue("redis_bench")
    return bench.url


def gate(*words: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["gate", *words], env={"COLUMNS": "200"})
    assert done.exit_code == status, done.output
    return done.output


def filled(url: str) -> None:
    store = open_store(StoreSettings(url=url))
    store.put(exactness())
    store.put(profit())
    store.close()


def test_what_was_measured_is_listed_shown_and_exported(url: str) -> None:
    assert "no gates" in gate("list", "--store", url)
    filled(url)
    listed = gate("list", "--store", url)
    assert "profit of ngram: pass" in listed
    # No chip has the features of that one, neither more nor fewer.
    assert listed.count("does not apply here: ") == 2
    shown = gate("show", profit().id, "--store", url)
    assert "Speed-up against active slots" in shown
    assert "k_max: 7" in shown
    assert "0 gates" in str(CliRunner().invoke(app, ["gate", "show", "zz", "--store", url]).exception)
    assert decode_gates(gate("export", "--store", url).encode()).profit == (profit(),)


def test_an_operator_s_word_is_kept_and_taken_back(url: str) -> None:
    filled(url)
    said = gate("force", "off", "--kind", "ngram", "--why", "the chip is hot", "--by", "alice", "--store", url)
    assert f"kind ngram: forced off by alice: the chip is hot; of what was measured it meets {profit().id}" in said
    (forced,) = decode_gates(gate("export", "--store", url).encode()).forced
    assert (forced.setting, forced.by) == (Setting.OFF, "alice")
    assert "kind ngram: forced off by alice" in gate("list", "--store", url)
    assert "forced off" in gate("show", forced.id, "--store", url) or "setting: 'off'" in gate(
        "show", forced.id, "--store", url
    )
    assert "nothing was forced" in gate("unforce", "--kind", "mtp", "--store", url, status=1)
    assert "no longer forced" in gate("unforce", "--kind", "ngram", "--store", url)
    assert not decode_gates(gate("export", "--store", url).encode()).forced


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--kinds", "mtp"),
        ("run", "--slots", "0,1"),
        ("run", "--slots", "all"),
        ("run", "--slots", "64"),
        ("run", "--prompts", "none/such.txt"),
        ("run", "--plot", "gain.pdf"),
        ("run", "--config", "none/such.yaml"),
        ("run", "--store", "ftp://somewhere"),
        ("force", "maybe", "--why", "x"),
        ("force", "on"),
        ("list", "--config", "none/such.yaml"),
    ],
)
def test_what_is_typed_wrong_is_usage(words: tuple[str, ...]) -> None:
    gate(*words, status=2)


def test_a_store_that_makes_no_sense_stops_a_check_before_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "gates.yaml"
    path.write_text("schema: [")
    done = CliRunner().invoke(app, ["gate", "run", "--store", f"file:{path}"])
    assert "unreadable" in str(done.exception)
    assert path.read_text() == "schema: ["
