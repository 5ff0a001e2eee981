"""What is asked."""

from pathlib import Path

import pytest

from deployments.messages.errors import ConfigError
from deployments.messages.generation import FinishReason, GenerationStatistics
from serve_app.gating.checks.asked import check_prompts, for_exactness, for_rungs, read_questions, shortened
from serve_app.proving.comparison import Reply
from serve_app.proving.workload import Mode


def test_chats_and_copies_come_in_turn_and_each_in_both_modes(golden_llama: Path) -> None:
    asked = read_questions("mixture", model=str(golden_llama / "llama.f16.gguf"), tokens=16, context=1024)
    names = [question.name.split()[0] for question in asked.questions]
    assert names[0].startswith("mt_bench")
    assert names[2].startswith("copy")
    assert names[::2] == names[1::2]
    assert [question.mode for question in asked.questions[:4]] == [Mode.GREEDY, Mode.SAMPLED] * 2
    assert asked.description == "chat and copy in turn, replies of at most 16 tokens"
    few = for_exactness(asked.questions, prompts=3)
    assert len(few) == 6
    rungs = for_rungs(few, most=8, tokens=5)
    assert [question.mode for question in rungs] == [Mode.GREEDY, Mode.SAMPLED, Mode.GREEDY]
    assert len({question.name.split()[0] for question in rungs}) == 3
    assert {question.request.max_tokens for question in rungs} == {5}


def test_a_file_brings_a_prompt_on_each_line(golden_llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("Name three rivers.\n\n  Count to ten. \n")
    asked = read_questions(str(path), model=str(golden_llama / "llama.f16.gguf"), tokens=4, context=256)
    assert [question.name for question in asked.questions[::2]] == ["mine-1 greedy", "mine-3 greedy"]
    assert "2 prompts of mine.txt" in asked.description
    path.write_text("\n")
    with pytest.raises(ConfigError, match="holds no prompts"):
        check_prompts(str(path))
    with pytest.raises(ConfigError, match="none of mixture"):
        check_prompts(str(tmp_path / "nowhere.txt"))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        check_prompts(str(path))


def test_shorter_replies_are_the_beginnings_of_longer_ones(golden_llama: Path) -> None:
    asked = read_questions("copy", model=str(golden_llama / "llama.f16.gguf"), tokens=8, context=1024)
    (first, second) = for_rungs(asked.questions, most=2, tokens=3)
    replies = {
        first.name: Reply(token_ids=(1, 2, 3), finish_reason=FinishReason.STOP, statistics=GenerationStatistics()),
        second.name: Reply(token_ids=(4, 5), finish_reason=FinishReason.STOP, statistics=GenerationStatistics()),
    }
    short = shortened(replies, questions=[first, second])
    assert (short[first.name].token_ids, short[first.name].finish_reason) == ((1, 2, 3), FinishReason.LENGTH)
    assert short[second.name] == replies[second.name]
