"""Guesses from a file: the right continuation or none, and a file that changes under way."""

import json
import os
from pathlib import Path

import pytest

from deployments.lm.drafting.oracle import OracleSettings, OracleStrategy
from deployments.messages.drafting import AcceptedPrefix, Open
from deployments.messages.errors import ConfigError
from deployments.messages.generation import SamplingSettings


def write(path: Path, *sequences: list[int]) -> str:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(sequences))
    os.replace(fresh, path)
    return str(path)


def opened(*prompt: int) -> Open:
    return Open(request_id="r", prompt_ids=prompt, sampling=SamplingSettings(), choice=0, k_max=8)


def commit(base_len: int, *tokens: int) -> AcceptedPrefix:
    return AcceptedPrefix(request_id="r", base_len=base_len, token_ids=tokens, accepted=0, generation=1, k=8)


def test_it_proposes_the_sequence_that_begins_with_the_tokens(tmp_path: Path) -> None:
    path = write(tmp_path / "truth.json", [1, 2, 3, 4, 5], [1, 2, 9, 8, 7, 6], [5, 5])
    strategy = OracleStrategy(OracleSettings(path=path, max_k=3))
    strategy.open(opened(1, 2))
    assert strategy.propose("r", k=8).token_ids == (3, 4, 5), "the first of those that fit"
    strategy.commit(commit(2, 9))
    assert strategy.propose("r", k=2).token_ids == (8, 7)
    strategy.commit(commit(3, 8, 7))
    assert strategy.propose("r", k=8).token_ids == (6,), "no further than the sequence goes"
    strategy.commit(commit(5, 6))
    assert strategy.propose("r", k=8).token_ids == ()
    strategy.commit(commit(6, 1))
    assert strategy.propose("r", k=8).token_ids == (), "the request went past the sequence"


def test_an_unknown_sequence_gets_no_guess(tmp_path: Path) -> None:
    strategy = OracleStrategy(OracleSettings(path=write(tmp_path / "truth.json", [1, 2, 3])))
    strategy.open(opened(2))
    assert strategy.propose("r", k=8).token_ids == ()
    strategy.close("r")
    with pytest.raises(KeyError):
        strategy.propose("r", k=8)


def test_a_changed_file_counts_for_the_next_request_and_a_broken_one_for_none(tmp_path: Path) -> None:
    path = tmp_path / "truth.json"
    strategy = OracleStrategy(OracleSettings(path=write(path)))
    strategy.open(opened(1))
    assert strategy.propose("r", k=8).token_ids == ()
    write(path, [1, 2, 3])
    strategy.open(opened(1))
    assert strategy.propose("r", k=8).token_ids == (2, 3)
    path.write_text("[[1, 2")
    strategy.open(opened(1))
    assert strategy.propose("r", k=8).token_ids == (2, 3), "the last good version stays"
    path.unlink()
    strategy.open(opened(1))
    assert strategy.propose("r", k=8).token_ids == (2, 3)


@pytest.mark.parametrize("text", ["", "{}", '[["a"]]', "[1]", "[[1.5]]", "\ud800", "[" * 100_000])
def test_a_file_of_another_form_is_refused_at_the_start(tmp_path: Path, text: str) -> None:
    path = tmp_path / "truth.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError, match="not a JSON list of lists"):
        OracleStrategy(OracleSettings(path=str(path)))


def test_a_missing_file_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        OracleStrategy(OracleSettings(path=str(tmp_path / "none.json")))
