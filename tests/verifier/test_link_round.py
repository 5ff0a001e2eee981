"""What is left of a round when those it was begun for change or leave."""

from deployments.messages.generation import Decline, GenerateRequest
from deployments.verifier.drafts import DraftWanted
from deployments.verifier.link_peer import Peer
from deployments.verifier.link_round import Round


def wanted(name: str, *, length: int = 4) -> DraftWanted:
    request = GenerateRequest(request_id=name, prompt_ids=(1, 2), max_tokens=9)
    return DraftWanted(request=request, sequence=[1] * length, k=3)


def peer() -> Peer:
    """A round only tells peers apart, so this one is never connected."""
    return object.__new__(Peer)


def test_a_drafter_that_owes_nothing_any_more_is_not_waited_for() -> None:
    halted, quick = peer(), peer()
    round_ = Round(waiting={halted: {"gone"}, quick: {"here", "grown"}}, outcomes={"late": Decline.LATE})
    for name in ("gone", "here", "grown", "late"):
        round_.note(wanted(name))

    fresh = round_.narrow([wanted("here"), wanted("grown", length=5)])

    assert [turn.request.request_id for turn in fresh] == ["grown"]
    assert round_.waiting == {quick: {"here"}}
    assert round_.outcomes == {}


def test_nothing_is_forgotten_when_nothing_changed() -> None:
    owing = peer()
    round_ = Round(waiting={owing: {"a"}}, outcomes={"b": Decline.NO_GUESS})
    for name in ("a", "b"):
        round_.note(wanted(name))

    assert round_.narrow([wanted("a"), wanted("b")]) == []
    assert round_.waiting == {owing: {"a"}}
    assert round_.outcomes == {"b": Decline.NO_GUESS}
