import pytest

from deployments.messages.generation import FinishReason, GenerationStatistics
from serve_app.proving.comparison import Difference, Reply, compare


def reply(*tokens: int, finish: FinishReason = FinishReason.LENGTH) -> Reply:
    return Reply(token_ids=tokens, finish_reason=finish, statistics=GenerationStatistics())


PLAIN = {"a": reply(1, 2, 3), "b": reply(4, 5)}


def test_equal_replies_differ_nowhere() -> None:
    seen = compare({"a": reply(1, 2, 3), "b": reply(4, 5)}, plain=PLAIN)
    assert (seen.replies, seen.tokens, seen.mismatches, seen.first) == (2, 5, 0, None)


def test_a_subset_is_compared_with_its_own() -> None:
    assert compare({"b": reply(4, 5)}, plain=PLAIN).tokens == 2


@pytest.mark.parametrize(
    ("wrong", "mismatches", "first"),
    [
        (reply(1, 9, 3), 1, Difference(name="a", position=1, got=9, plain=2)),
        (reply(1, 9, 9), 2, Difference(name="a", position=1, got=9, plain=2)),
        (reply(1), 2, Difference(name="a", position=1, got=None, plain=2)),
        (reply(1, 2, 3, 7), 1, Difference(name="a", position=3, got=7, plain=None)),
        (reply(), 3, Difference(name="a", position=0, got=None, plain=1)),
        (reply(1, 2, 3, finish=FinishReason.STOP), 1, Difference(name="a", position=3, got=None, plain=None)),
    ],
)
def test_every_sort_of_difference_is_found_and_named(wrong: Reply, mismatches: int, first: Difference) -> None:
    seen = compare({"a": wrong, "b": reply(4, 5)}, plain=PLAIN)
    assert (seen.mismatches, seen.first) == (mismatches, first)


def test_a_difference_names_request_position_and_both_tokens() -> None:
    text = str(Difference(name="mt_bench-81 greedy", position=17, got=9, plain=None))
    assert text == "mt_bench-81 greedy, position 17: token 9, but plain decoding gave the end"
