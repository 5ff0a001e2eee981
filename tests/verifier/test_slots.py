"""A slot's own arithmetic: what a window's draws add, where a reply ends, and what it has cost."""

import pytest
from msgspec.structs import replace

from deployments.messages.generation import Decline, FinishReason, GenerateRequest
from deployments.verifier.slots import Slot, Tally


def slot(*, tokens: int = 4, ends: tuple[int, ...] = (99,)) -> Slot:
    request = GenerateRequest(request_id="r", prompt_ids=(1, 2, 3), max_tokens=tokens, end_ids=ends)
    return Slot(index=0, request=request, tokens=[1, 2, 3], pages=(1,), admitted_at=10.0)


@pytest.mark.parametrize(
    ("draws", "fresh", "finish"),
    [
        ((5,), (5,), None),
        ((5, 6, 7), (5, 6, 7), None),
        ((5, 6, 7, 8), (5, 6, 7, 8), FinishReason.LENGTH),
        ((5, 6, 7, 8, 9), (5, 6, 7, 8), FinishReason.LENGTH),
        ((99,), (), FinishReason.STOP),
        ((5, 99, 6), (5,), FinishReason.STOP),
        ((5, 6, 7, 99), (5, 6, 7), FinishReason.STOP),
        ((5, 6, 7, 8, 99), (5, 6, 7, 8), FinishReason.LENGTH),
    ],
)
def test_a_reply_ends_at_the_first_end(
    draws: tuple[int, ...], fresh: tuple[int, ...], finish: FinishReason | None
) -> None:
    one = slot()

    assert one.extend(draws) == (fresh, finish)
    assert one.tokens == [1, 2, 3, *fresh]
    assert (one.generated, one.remaining) == (len(fresh), 4 - len(fresh))


def test_an_end_that_is_ignored_is_a_token_like_any_other() -> None:
    one = slot()
    one.request = replace(one.request, ignore_eos=True)

    assert one.extend((5, 99, 99)) == ((5, 99, 99), None)
    assert one.extend((99,)) == ((99,), FinishReason.LENGTH)


def test_a_slot_decodes_once_it_has_drawn_and_all_but_its_last_token_is_cached() -> None:
    one = slot()
    assert (one.is_decoding, one.missing) == (False, 3)
    one.cached = 2
    assert (one.is_decoding, one.missing) == (False, 1)
    one.cached = 3
    one.extend((5,))
    assert (one.is_decoding, one.missing) == (True, 0)


def test_a_preempted_slot_runs_all_but_its_last_token_again() -> None:
    one = slot()
    one.extend((5, 6))
    one.cached = 0
    assert (one.is_decoding, one.missing) == (False, 4)
    one.cached = 4
    assert (one.is_decoding, one.missing) == (True, 0)


def test_a_deadline_is_for_the_first_slot_only() -> None:
    one = slot()
    assert not one.is_expired(now=1e9)
    one.expires_at = 12.0
    assert [one.is_expired(now=now) for now in (11.9, 12.0)] == [False, True]
    one.preemptions = 1
    assert not one.is_expired(now=13.0)


def test_rounds_are_a_matrix_of_drafts_and_kept() -> None:
    tally = Tally()
    assert tally.matrix() == ()
    tally.rounds.update({(1, 0): 2, (3, 2): 1, (3, 3): 4})

    assert tally.matrix() == ((0,), (2, 0), (0, 0, 0), (0, 0, 1, 4))


def test_statistics_say_what_a_reply_has_cost() -> None:
    one = slot()
    waiting = one.statistics(now=10.5)
    assert (waiting.prompt_n, waiting.prompt_ms, waiting.predicted_n, waiting.predicted_ms) == (3, 500.0, 0, 0.0)
    assert waiting.draft_kind is None

    one.reused = 2
    assert (one.statistics(now=10.5).prompt_n, one.statistics(now=10.5).cache_n) == (1, 2)
    one.first_token_at = 11.0
    one.extend((5, 6))
    one.tally.rounds[(2, 1)] += 1
    one.tally.declined[Decline.LATE] += 2
    one.tally.draft_kind = "ngram"
    done = one.statistics(now=12.0)

    assert (done.prompt_ms, done.predicted_n, done.predicted_ms) == (1000.0, 2, 1000.0)
    assert (done.draft_rounds, done.draft_n, done.draft_n_accepted) == (1, 2, 1)
    assert (done.draft_kind, done.declined) == ("ngram", {"late": 2})
