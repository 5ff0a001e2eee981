"""What a drafter is told, and which of its messages count."""

import itertools
from typing import Any

import pytest

from deployments.messages.drafting import AcceptedPrefix, Close, DraftBlock, Forgotten, Open, Pong, ToDrafter, Welcome
from deployments.messages.generation import Decline, GenerateRequest, SamplingSettings
from deployments.verifier.drafts import DraftWanted
from deployments.verifier.link_ledger import Ledger, Verdict

REQUEST = GenerateRequest(
    request_id="r", prompt_ids=(1, 2, 3), max_tokens=9, sampling=SamplingSettings(seed=5), choice=2
)


def make() -> Ledger:
    return Ledger(vocab_size=100, k_max=7)


def ask(ledger: Ledger, *sequence: int, k: int = 3, accepted: int = 0) -> tuple[ToDrafter, ...]:
    return ledger.ask(DraftWanted(request=REQUEST, sequence=list(sequence), k=k, accepted=accepted), k=k)


def commit(base_len: int, *tokens: int, generation: int, accepted: int = 0) -> AcceptedPrefix:
    return AcceptedPrefix(
        request_id="r", base_len=base_len, token_ids=tokens, accepted=accepted, generation=generation, k=3
    )


def opened(*prompt: int) -> Open:
    return Open(request_id="r", prompt_ids=prompt, sampling=SamplingSettings(seed=5), choice=2, k_max=7)


def block(base_len: int, *tokens: int, generation: int = 1, request_id: str = "r", **more: Any) -> DraftBlock:
    return DraftBlock(request_id=request_id, base_len=base_len, generation=generation, token_ids=tokens, **more)


def verdict(outcome: DraftBlock | Decline, *, settles: bool, request_id: str = "r") -> Verdict:
    return Verdict(request_id=request_id, outcome=outcome, settles=settles)


def test_a_request_opened_early_is_told_only_what_is_new() -> None:
    ledger = make()
    assert ledger.open(REQUEST) == opened(1, 2, 3)
    assert ask(ledger, 1, 2, 3, 4) == (commit(3, 4, generation=1),)
    assert ask(ledger, 1, 2, 3, 4, 5, 6, 7, accepted=2) == (commit(4, 5, 6, 7, generation=2, accepted=2),)


def test_a_request_not_opened_is_opened_with_all_but_the_last_token() -> None:
    assert ask(make(), 1, 2, 3, 4, 5) == (opened(1, 2, 3, 4), commit(4, 5, generation=1))
    assert ask(make(), 1) == (opened(), commit(0, 1, generation=1))


def test_asking_again_without_news_repeats_the_last_token() -> None:
    ledger = make()
    ask(ledger, 1, 2, 3, 4)
    assert ask(ledger, 1, 2, 3, 4) == (commit(3, 4, generation=2),)


def test_the_answer_to_the_open_question_counts_once() -> None:
    ledger = make()
    ask(ledger, 1, 2, 3, 4)
    answer = block(4, 99, 0, 7)
    assert ledger.judge(answer) == verdict(answer, settles=True)
    assert ledger.judge(answer) == verdict(Decline.STALE, settles=False)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (block(4), Decline.NO_GUESS),
        (block(3, 5), Decline.STALE),
        (block(5, 5), Decline.STALE),
        (block(4, 1, 2, 3, 4), Decline.MALFORMED),
        (block(4, 100), Decline.MALFORMED),
        (block(4, 1, -1), Decline.MALFORMED),
        (block(4, 2**63), Decline.MALFORMED),
        (block(4, 1, 2, parents=(-1, 0)), Decline.MALFORMED),
        (block(4, 1, parents=()), Decline.MALFORMED),
    ],
)
def test_an_answer_that_cannot_be_used_settles_the_question(answer: DraftBlock, outcome: Decline) -> None:
    ledger = make()
    ask(ledger, 1, 2, 3, 4)
    assert ledger.judge(answer) == verdict(outcome, settles=True)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (block(4, 5, generation=1), Decline.STALE),
        (block(5, 5, generation=3), Decline.MALFORMED),
        (block(5, 5, generation=0), Decline.MALFORMED),
        (block(5, 5, generation=-2), Decline.MALFORMED),
    ],
)
def test_an_answer_to_another_question_settles_nothing(answer: DraftBlock, outcome: Decline) -> None:
    ledger = make()
    ask(ledger, 1, 2, 3, 4)
    ledger.expire()
    ask(ledger, 1, 2, 3, 4, 5)
    assert ledger.judge(answer) == verdict(outcome, settles=False)
    right = block(5, 5, generation=2)
    assert ledger.judge(right) == verdict(right, settles=True)


def test_after_the_deadline_an_answer_is_stale() -> None:
    ledger = make()
    ask(ledger, 1, 2, 3, 4)
    ledger.expire()
    assert ledger.judge(block(4, 5)) == verdict(Decline.STALE, settles=False)


@pytest.mark.parametrize("generation", [-1, 0, 1, 2])
def test_a_block_for_a_request_never_seen_is_malformed(generation: int) -> None:
    answer = block(4, 5, generation=generation, request_id="x")
    assert make().judge(answer) == verdict(Decline.MALFORMED, settles=False, request_id="x")


def test_the_last_answer_to_a_closed_request_is_stale_and_one_more_is_malformed() -> None:
    ledger = make()
    ask(ledger, 1, 2, 3, 4)
    ask(ledger, 1, 2, 3, 4, 5)
    assert ledger.close("r", reason="done") == Close(request_id="r", reason="done")
    assert ledger.close("r", reason="done") is None
    outcomes = [ledger.judge(block(4, 5, generation=generation)) for generation in (1, 2, 2)]
    assert outcomes == [verdict(one, settles=False) for one in (Decline.STALE, Decline.STALE, Decline.MALFORMED)]


def test_a_forgotten_request_is_opened_again_in_the_next_round() -> None:
    ledger = make()
    ask(ledger, 1, 2, 3, 4)
    assert ledger.judge(Forgotten(request_id="r")) == verdict(Decline.FORGOTTEN, settles=True)
    assert ask(ledger, 1, 2, 3, 4, 5) == (opened(1, 2, 3, 4), commit(4, 5, generation=2))


def test_a_request_forgotten_again_and_again_is_asked_for_less_and_less() -> None:
    ledger, asked = make(), []
    for round_ in range(700):
        if ask(ledger, 1, 2, 3, 4):
            asked.append(round_)
            ledger.judge(Forgotten(request_id="r"))
    gaps = [after - before for before, after in itertools.pairwise(asked)]
    assert gaps == [1, 3, 5, 9, 17, 33, 65, 129, 257]


def test_an_answer_ends_the_restraint() -> None:
    ledger = make()
    ask(ledger, 1, 2, 3, 4)
    ledger.judge(Forgotten(request_id="r"))
    ask(ledger, 1, 2, 3, 4)
    ledger.judge(block(4, generation=2))
    ask(ledger, 1, 2, 3, 4)
    ledger.judge(Forgotten(request_id="r"))
    assert ask(ledger, 1, 2, 3, 4)


def test_other_messages_say_nothing_about_a_request() -> None:
    ledger = make()
    ask(ledger, 1, 2, 3, 4)
    assert ledger.judge(Pong(nonce=1)) is None
    assert ledger.judge(Welcome(drafter="d", kind="k", max_k=1)) is None
    assert ledger.judge(Forgotten(request_id="x")) is None


def test_requests_that_ended_meanwhile_are_closed_together() -> None:
    ledger = make()
    ask(ledger, 1, 2, 3, 4)
    assert ledger.close_all_but({"r"}, reason="ended") == []
    assert ledger.close_all_but({"x"}, reason="ended") == [Close(request_id="r", reason="ended")]
    assert ledger.close_all_but(set(), reason="ended") == []
    assert ask(ledger, 1, 2)[0] == opened(1)
