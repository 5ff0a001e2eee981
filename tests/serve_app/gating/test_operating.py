"""What operators are told, and what they say."""

from pathlib import Path

import pytest

from deployments.messages.errors import ConfigError
from serve_app.gating.file_store import FileStore
from serve_app.gating.here import Here
from serve_app.gating.operating import as_yaml, forced_now, found_record, listed, met, read_gates, target_of
from serve_app.gating.records import Setting, Target
from serve_app.gating.snapshot import Snapshot
from serve_app.gating.store import GateStoreError
from tests.serve_app.gating.making import KEY, exactness, forced, profit

GATES = Snapshot.of((exactness(), profit(), forced(kind="ngram")), revision=3)


def test_each_gate_says_whether_it_applies_or_which_part_differs() -> None:
    lines = list(listed(GATES, here=[Here(parts={"jax": "0.12.0"})]))
    assert lines[0].startswith(exactness().id)
    assert lines[1].strip() == "applies here as far as can be seen"
    assert "profit of ngram: pass" in lines[2]
    assert lines[4].endswith("kind ngram: forced off by alice: the chip is hot")
    assert lines[5].startswith("not compared: chip, ")
    assert lines[5].endswith("programs, drafter, k_max")
    assert "--config" in lines[6]
    assert "--service" in lines[7]
    newer = list(listed(GATES, here=[Here(parts={"jax": "0.12.1", "slots": 4})]))
    assert newer[1].strip() == "does not apply here: slots 8 != 4, jax 0.12.0 != 0.12.1"
    assert newer[3].strip() == newer[1].strip()
    assert list(listed(Snapshot(), here=[Here(parts={})])) == ["no gates: 'outrider gate run' makes the first ones"]


def test_where_every_part_is_known_nothing_is_left_open() -> None:
    parts = {name: getattr(KEY, name) for name in KEY.__struct_fields__}
    pairings = {"ngram": {"drafter": profit().key.drafter, "k_max": 7}}
    there = [
        Here(where="to a", parts=parts, pairings=pairings),
        Here(where="to b", parts={**parts, "programs": "ce" * 32}, pairings={"mtp": {}}),
    ]
    lines = [line.strip() for line in listed(GATES, here=there)]
    assert lines[1:3] == ["applies to a", f"does not apply to b: programs {'cd' * 6} != {'ce' * 6}"]
    assert lines[4:6] == [
        "applies to a",
        f"does not apply to b: drafter.kind ngram != mtp, programs {'cd' * 6} != {'ce' * 6}",
    ]
    assert len(lines) == 7


def test_a_gate_is_found_by_the_beginning_of_its_id() -> None:
    assert found_record(GATES, name=profit().id[:9]) == profit()
    with pytest.raises(ConfigError, match="0 gates"):
        found_record(GATES, name="nothing")
    with pytest.raises(ConfigError, match="3 gates"):
        found_record(GATES, name="")


def test_a_gate_is_shown_in_the_words_of_the_file() -> None:
    text = as_yaml(profit())
    assert f"id: {profit().id}" in text
    assert "plain_tokens_s: 40.0" in text


def test_a_store_that_cannot_be_read_is_an_error_here(tmp_path: Path) -> None:
    path = tmp_path / "gates.yaml"
    assert read_gates(FileStore(path)) == Snapshot()
    path.write_text("schema: [")
    with pytest.raises(GateStoreError, match="unreadable: line 2, column 1"):
        read_gates(FileStore(path))


def test_a_model_is_meant_by_its_fingerprint_or_its_file(golden_llama: Path) -> None:
    assert target_of(model=KEY.model) == Target(model=KEY.model)
    by_file = target_of(model=str(golden_llama / "llama.f16.gguf"))
    assert len(by_file.model) == 64
    with pytest.raises(ConfigError):
        target_of(model="no such model")


def test_whoever_forces_something_says_so() -> None:
    word = forced_now(Target(kind="ngram"), setting=Setting.ON, by="alice", why="a test")
    assert word.at.tzinfo is not None
    with pytest.raises(ConfigError, match="--by"):
        forced_now(Target(), setting=Setting.ON, by=" ", why="a test")


def test_what_is_met_by_a_word_is_known() -> None:
    assert met(GATES, target=Target(kind="ngram")) == (profit(),)
    assert met(GATES, target=Target(kind="mtp")) == ()
