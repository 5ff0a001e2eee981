"""An engine that looks at what its drafts gain: a drafter made slow on purpose, and one that pays."""

import time
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from deployments.verifier.drafts import Drafts, DraftWanted
from deployments.verifier.live_gain import GainSpan, LiveGains
from deployments.verifier.packing import PackedWindow
from deployments.verifier.programs import Launched
from tests.verifier.gaining import RULE, SLOTS, Watch, expecting
from tests.verifier.recalling import recalling_engine
from tests.verifier.serving import Reply, serve
from tests.verifier.test_engine import Guessing, assert_whole, request


class Slow(Guessing):
    """Takes longer than a window."""

    def exchange(self, wanted: Sequence[DraftWanted], /) -> Drafts:
        time.sleep(0.005)
        return super().exchange(wanted)


def served(watch: Watch, *, drafts: Guessing, monkeypatch: pytest.MonkeyPatch) -> dict[str, Reply]:
    """Three replies by an engine whose windows take a millisecond each, checked against the definition."""
    engine, programs = recalling_engine(
        drafts, slots=SLOTS, context=512, draft_k=3, rows=(8, 32), rules=lambda: watch.rule
    )
    launch = programs.launch

    def launch_slowly(window: PackedWindow) -> Launched:
        time.sleep(0.001)
        return launch(window)

    monkeypatch.setattr(programs, "launch", launch_slowly)
    engine.watch_windows(LiveGains(watch, span=GainSpan(windows=15, seconds=0.01)).landed)
    asked = [request(number, tokens=150) for number in range(3)]
    replies = serve(engine, asked)
    for one in asked:
        assert_whole(replies[one.request_id], of=one)
    return replies


IN_A_MILLISECOND = replace(
    RULE,
    expected=tuple(replace(each, plain_window_ms=1.1, window_ms=1.1) for each in expecting(1, 2, 3)),
)


@pytest.mark.parametrize("stops", [False, True])
def test_an_engine_with_a_slow_drafter_says_so_and_no_reply_changes(
    stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it stops, the drafts end in the middle of the replies."""
    watch = Watch(rule=IN_A_MILLISECOND, stops=stops)
    replies = served(watch, drafts=Slow(skill=0.3), monkeypatch=monkeypatch)
    lost = next(found for found in watch.told if found.is_lost)
    assert lost.wait_ms > 4.0
    assert lost.found.gain < 0.95
    declined = [reply.statistics.declined.get("not_faster", 0) for reply in replies.values()]
    assert (watch.told[-1] is lost) == stops
    assert all(count > 20 for count in declined) if stops else not any(declined)


def test_an_engine_whose_drafts_pay_says_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are all right and cost nothing: none to three of them."""
    watch = Watch(rule=IN_A_MILLISECOND)
    served(watch, drafts=Guessing(skill=1.0), monkeypatch=monkeypatch)
    assert len(watch.told) > 1
    assert not any(found.is_lost for found in watch.told)
    assert 2.5 < watch.told[0].found.tokens_per_round < 3.5
    assert watch.told[0].found.gain > 1.2
