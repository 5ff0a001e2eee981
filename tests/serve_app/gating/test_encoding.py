"""YAML and JSON of the gates: round trips, and where exactly a hand-edited file is wrong."""

from random import Random

import pytest

from serve_app.gating.encoding import (
    GatesUnreadable,
    decode_gates,
    decode_record,
    encode_gates,
    encode_record,
)
from serve_app.gating.records import Forced, Setting
from serve_app.gating.snapshot import Snapshot
from tests.serve_app.gating.making import exactness, forced, key, profit

GATES = Snapshot.of(
    [exactness(), exactness(key(slots=4), is_exact=False), profit(), forced(chip="TPU v6e"), forced(Setting.ON)],
    revision=7,
)
TEXT = encode_gates(GATES)


def trouble(text: str, /) -> GatesUnreadable:
    with pytest.raises(GatesUnreadable) as told:
        decode_gates(text.encode())
    return told.value


def place_of(part: str, /, *, text: str) -> tuple[int, int]:
    begin = text.index(part)
    return text.count("\n", 0, begin) + 1, begin - text.rfind("\n", 0, begin)


def test_a_file_comes_back_as_it_was() -> None:
    assert decode_gates(TEXT.encode()) == GATES
    assert encode_gates(decode_gates(TEXT.encode())) == TEXT
    assert decode_gates(encode_gates(Snapshot()).encode()) == Snapshot()
    assert "&id" not in TEXT


def test_every_record_comes_back_from_json() -> None:
    for record in GATES.records:
        field, value = encode_record(record)
        assert decode_record(field, value=value) == record


def test_words_of_yaml_1_1_are_words() -> None:
    """An operator writes `setting: on`, and a name may be `no`."""
    text = "schema: 1\nforced:\n- target: {kind: no}\n  setting: on\n  by: yes\n  at: 2026-11-29T10:00:00Z\n"
    (found,) = decode_gates(text.encode()).forced
    assert isinstance(found, Forced)
    assert (found.setting, found.target.kind, found.by) == (Setting.ON, "no", "yes")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("revision: 7", "revision: seven", "revision: Expected `int`, got `str`"),
        ("slots: 4", "slots: many", "exactness[0].key.slots: Expected `int`, got `str`"),
        ("setting: 'on'", "setting: maybe", "setting: Invalid enum value 'maybe'"),
        ("page_size: 64", "page_size: 0", "Expected `int` >= 1"),
        ("by: alice", "by: ''", "by: Expected `str` of length >= 1"),
    ],
)
def test_a_wrong_value_is_found(old: str, new: str, told: str) -> None:
    text = TEXT.replace(old, new, 1)
    error = trouble(text)
    assert told in error.message
    line, column = place_of(new, text=text)
    assert (error.line, error.column) == (line, column + new.index(":") + 2)
    assert str(error).startswith(f"line {line}, column ")


def test_an_unknown_or_missing_key_is_found_at_its_record() -> None:
    text = TEXT.replace("  by: alice", "  colour: red\n  by: alice", 1)
    error = trouble(text)
    assert "unknown field `colour`" in error.message
    assert error.line == place_of("forced:", text=text)[0] + 1
    assert "missing required field `by`" in trouble(TEXT.replace("  by: alice\n", "", 1)).message


@pytest.mark.parametrize(
    ("text", "told", "line", "column"),
    [
        ("", "begins with 'schema: 1'", 1, 1),
        ("- 1", "begins with 'schema: 1'", 1, 1),
        ("a: [1,\nb: 2", "not YAML", 3, 1),
        ("a:\n\t- 1", "not YAML", 2, 1),
        ("revision: 1", "need 'schema: 1'", 1, 1),
        ("schema: true", "need 'schema: 1'", 1, 9),
        ("schema: 2\nnews: 3", "written by a newer Outrider", 1, 9),
        ("schema: 1\nforced: []\nforced: []", "key 'forced' is given twice", 3, 1),
        ("schema: 1\nforced: &a []\nprofit: *a", "anchors and aliases", 2, 9),
        ("schema: 1\n? [a]\n: 1", "keys of gates are words", 2, 3),
        ("schema: 1\nforced: !!python/object:os.system []", "not YAML", 2, 9),
        ("schema: 1\nforced: " + "[" * 40 + "]" * 40, "nested too deeply", 2, 41),
        ("schema: 1\n--- {}", "not YAML", 2, 1),
        ("schema: 1\na: \x07", "not YAML", 2, 4),
    ],
)
def test_a_file_that_is_no_gates_is_found(text: str, told: str, line: int, column: int) -> None:
    error = trouble(text)
    assert told in error.message
    assert (error.line, error.column) == (line, column)


def test_bytes_that_are_no_text_are_found() -> None:
    with pytest.raises(GatesUnreadable, match="line 2, column 4: this byte is not UTF-8"):
        decode_gates(b"schema: 1\na: \xff")


def test_very_deep_and_very_long_files_are_refused() -> None:
    assert "nested" in trouble("[" * 5000).message or "YAML" in trouble("[" * 5000).message
    assert "too many" in trouble("#" * (16 * 2**20 + 1)).message
    assert "YAML" in trouble("schema: 1\nrevision: " + "9" * 10_000).message


def test_evidence_does_not_move_to_another_key() -> None:
    text = TEXT.replace("jax: 0.12.0", "jax: 0.12.1", 1)
    error = trouble(text)
    assert "evidence belongs to the key it was measured for" in error.message
    assert error.line == place_of(f"id: {exactness(key(slots=4)).id}", text=text)[0]


def test_a_verdict_that_the_evidence_denies_is_refused() -> None:
    text = TEXT.replace("verdict: fail\n  reason: inexact", "verdict: pass", 1)
    assert "a pass needs tokens compared and no mismatches" in trouble(text).message


def test_a_damaged_file_is_read_whole_or_refused() -> None:
    """Nothing but `GatesUnreadable` comes of any damage."""
    random = Random(5)
    data = TEXT.encode()
    refused = 0
    for _ in range(150):
        at = random.randrange(len(data))
        spoilt = [
            data[:at],
            data[:at] + bytes([random.randrange(256)]) + data[at + 1 :],
            data[:at] + data[at + random.randrange(1, 60) :],
            data[:at] + random.choice([b"\n", b"- ", b": ", b"{", b"'", b"*a", b"!!", b"\t", b"#"]) + data[at:],
        ][random.randrange(4)]
        try:
            decode_gates(spoilt)
        except GatesUnreadable:
            refused += 1
    assert refused > 50
