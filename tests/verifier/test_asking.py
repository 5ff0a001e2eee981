"""Who gets drafts, how many, and why there are none."""

import pytest
from msgspec.structs import replace

from deployments.messages.generation import GenerateRequest, SpeculationSettings
from deployments.verifier.drafts import NoDrafts
from deployments.verifier.engine import Engine
from tests.verifier.recalling import recalling_engine
from tests.verifier.serving import serve
from tests.verifier.test_engine import Guessing, assert_whole, request


def declines(engine: Engine, one: GenerateRequest) -> dict[str, int]:
    return serve(engine, [one])["r0"].statistics.declined


def test_every_window_without_a_draft_has_a_counted_reason() -> None:
    one = request(0, tokens=6)
    off, _ = recalling_engine(Guessing(), draft_k=0)
    assert declines(off, one) == {"disabled_by_operator": 5}
    for speculation in (SpeculationSettings(enabled=False), SpeculationSettings(max_draft=0)):
        engine, _ = recalling_engine(Guessing())
        assert declines(engine, replace(one, speculation=speculation)) == {"disabled_by_request": 5}
    engine, _ = recalling_engine(NoDrafts())
    assert declines(engine, one) == {"disabled_by_operator": 4, "last_token": 1}


def test_a_request_whose_guesses_miss_backs_off() -> None:
    engine, _ = recalling_engine(Guessing(skill=-1.0, seed=3), context=128, draft_k=3)
    one = request(0, tokens=60)
    statistics = serve(engine, [one])["r0"].statistics

    assert statistics.declined["backing_off"] >= 16
    assert statistics.draft_rounds < 20


def test_no_request_gets_more_drafts_than_it_asked_for() -> None:
    engine, _ = recalling_engine(Guessing(skill=1.0), draft_k=3)
    one = replace(request(0, tokens=20), speculation=SpeculationSettings(max_draft=2))

    assert len(serve(engine, [one])["r0"].statistics.rounds) == 3


@pytest.mark.parametrize(("requests", "share"), [(1, 3), (2, 2), (3, 1), (5, 0)])
def test_requests_share_the_rows_for_drafts(requests: int, share: int) -> None:
    """Four rows: so many for each of those that decode, however many its drafter was asked for before."""
    engine, programs = recalling_engine(Guessing(skill=1.0), slots=5, draft_k=3, draft_rows=4, rows=(8, 32))
    wanted = [request(number, tokens=20) for number in range(requests)]
    replies = serve(engine, wanted)

    for one, reply in zip(wanted, replies.values(), strict=True):
        assert_whole(reply, of=one)
        assert (reply.statistics.declined.get("load", 0) > 0) == (requests == 5)
    assert min(share, 1) <= programs.most_drafts <= 4
