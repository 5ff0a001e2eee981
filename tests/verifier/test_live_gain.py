"""Whether drafts gain what the record promises, with windows whose times are known."""

import pytest
from msgspec.structs import replace

from deployments.messages.gates import GainFigures, LiveGain
from deployments.messages.generation import FinishReason
from deployments.verifier.backoff import BackOff
from deployments.verifier.live_gain import GainSpan
from tests.verifier.gaining import RULE, STOPPED, Serving, Watch, expecting


def paying(service: Serving) -> None:
    """Two tokens in 26 ms where plain decoding takes 21 for one: 1.62 times as fast."""
    for _ in range(4):
        service.window(1)
    service.window(None)


def losing(service: Serving) -> None:
    """Ten windows with drafts bring eleven tokens in 26 ms each; then there is one without drafts."""
    for number in range(10):
        service.window(int(number == 2))
    service.window(None)


def test_the_gain_is_tokens_per_turn_by_the_time_of_a_turn() -> None:
    service = Serving()
    found = service.until_told(2, windows=lambda: paying(service))[-1]
    # Of five turns four bring two tokens; a span ends with the window that fills it.
    drafted, plain = found.drafted_windows, found.windows - found.drafted_windows
    seconds = drafted * 0.026 + plain * 0.021
    assert found.found.gain == pytest.approx((2 * drafted + plain) * 0.021 / seconds)
    assert found.found.tokens_per_round == 2.0
    assert found.found.plain_window_ms == pytest.approx(20.0)
    assert found.found.window_ms == pytest.approx(25.0)
    assert drafted == 50
    assert found.seconds == pytest.approx(seconds)
    assert found.recorded == GainFigures(gain=1.6, tokens_per_round=2.0, plain_window_ms=20.0, window_ms=25.0)
    assert (found.is_lost, found.wait_ms) == (False, 0)


def test_the_wait_for_drafts_is_what_speculation_costs() -> None:
    """A drafter that is late each time makes windows without drafts long as well; they are no measure of plain ones."""
    service = Serving()

    def late() -> None:
        for kept in (1, None):
            service.window(kept, wait_s=0.02)

    found = service.until_told(2, windows=late)[-1]
    assert found.plain_windows == "seen"
    assert found.wait_ms == pytest.approx(20.0)
    assert found.found.gain == pytest.approx(3 * 0.021 / (0.046 + 0.041), rel=0.02)
    assert found.is_lost


def test_numbers_of_active_slots_count_by_their_time() -> None:
    service = Serving(Watch(rule=replace(RULE, expected=(*expecting(1, gain=2.0), *expecting(3, gain=1.2)))))

    def both() -> None:
        service.window(1)
        for _ in range(3):
            service.window(0, 1, 0, window_s=0.039)
        service.window(None)
        service.window(None, None, None)

    (found,) = service.until_told(1, windows=both)
    # 13 of them, with one slot, and 39 with three.
    alone, beside = 13 * 0.026 + 12 * 0.021, 38 * 0.040 + 12 * 0.021
    assert found.windows == pytest.approx(75, abs=3)
    assert found.found.tokens_per_round == pytest.approx((2 * 13 + 4 / 3 * 3 * 38) / (13 + 3 * 38), rel=0.02)
    assert found.recorded.gain == pytest.approx((2.0 * alone + 1.2 * beside) / (alone + beside), rel=0.02)


@pytest.mark.parametrize(
    "kind", ["with a prompt", "after a pause", "too many slots", "no slots that count", "a request that is gone"]
)
def test_other_windows_do_not_count(kind: str) -> None:
    service = Serving(span=GainSpan(windows=1, seconds=0.001))
    service.window(None)
    if kind == "with a prompt":
        service.window(1, prompt=30)
        service.window(0, 0, prompt=1)
    elif kind == "after a pause":
        service.window(1, follows=False)
    elif kind == "too many slots":
        service.window(1, 1, 1, 1)
    elif kind == "no slots that count":
        service.watch.rule = STOPPED
        service.window(1)
        service.window(1)
    else:
        service.window(1, 1, lost=1)
    assert service.watch.told == []
    service.watch.rule = RULE
    service.window(1)
    service.window(1)
    assert len(service.watch.told) > 0


def test_the_token_that_ends_a_reply_took_a_window_too() -> None:
    service = Serving()
    finish = FinishReason.STOP
    found = service.until_told(2, windows=lambda: service.window(0, window_s=0.02, finish=finish))[-1]
    assert found.found.gain == pytest.approx(1.0)


def test_one_span_is_no_loss_and_two_are() -> None:
    service = Serving()
    service.until_told(1, windows=lambda: paying(service))
    first, second, third = service.until_told(3, windows=lambda: losing(service))
    assert first.found.gain < 0.95
    assert [first.is_lost, second.is_lost, third.is_lost] == [False, True, True]


def test_spans_that_take_turns_are_neither_a_loss_nor_the_end_of_one() -> None:
    service = Serving()
    for _ in range(4):
        service.until_told(1, windows=lambda: losing(service))
        service.until_told(1, windows=lambda: paying(service))
    assert not any(found.is_lost for found in service.watch.told)
    service.until_told(2, windows=lambda: losing(service))
    for _ in range(4):
        service.until_told(1, windows=lambda: paying(service))
        service.until_told(1, windows=lambda: losing(service))
    assert all(found.is_lost for found in service.watch.told[-8:])
    back = service.until_told(2, windows=lambda: paying(service))
    assert [found.is_lost for found in back] == [True, False]


@pytest.mark.parametrize("tokens", [60, 250, 800])
def test_a_workload_without_repetition_is_no_loss(tokens: int) -> None:
    """All guesses are wrong, requests back off, and what is left of the cost is not worth a word."""
    service = Serving()

    def reply() -> None:
        backoff = BackOff()
        for _ in range(tokens):
            kept = 0 if backoff.may_guess else None
            service.window(kept)
            backoff = backoff.after_window(speculated=kept is not None, kept=0)

    found = service.until_told(3, windows=reply)
    assert all(0.95 < each.found.gain < 1.0 for each in found)
    assert not any(each.is_lost for each in found)
    # Without back-off it would be.
    busy = Serving()
    assert busy.until_told(2, windows=lambda: busy.window(0))[-1].is_lost


@pytest.mark.parametrize("slower", [0.5, 1.0, 3.0])
def test_a_chip_that_is_slower_at_everything_has_lost_nothing(slower: float) -> None:
    """Seen windows without drafts say so; where there are none, those with drafts do."""
    service = Serving()

    def mixed() -> None:
        service.window(1, window_s=slower * 0.025)
        service.window(None, window_s=slower * 0.020)

    seen = service.until_told(2, windows=mixed)[-1]
    only = Serving()
    unseen = only.until_told(2, windows=lambda: only.window(1, window_s=slower * 0.025))[-1]
    assert (seen.plain_windows, unseen.plain_windows) == ("seen", "recorded")
    assert seen.found.gain > 1.25
    assert unseen.found.gain > 1.5
    assert not seen.is_lost
    assert not unseen.is_lost
    # A record's windows are never taken for shorter than they are.
    assert unseen.found.plain_window_ms == pytest.approx(20.0 * max(slower, 1.0))


def test_without_windows_to_compare_fewer_tokens_still_are_a_loss() -> None:
    service = Serving()
    found = service.until_told(2, windows=lambda: service.window(0))[-1]
    assert (found.plain_windows, found.is_lost) == ("recorded", True)


def test_another_record_begins_anew_and_the_same_one_does_not() -> None:
    service = Serving()
    service.until_told(2, windows=lambda: losing(service))
    for _ in range(30):
        losing(service)
        service.watch.rule = replace(RULE, revision=service.watch.rule.revision + 1, expected=expecting(1, 2, 3))
    assert len(service.watch.told) > 2
    assert service.watch.told[-1].is_lost
    service.watch.rule = replace(RULE, expected=expecting(1, 2, 3, gain=1.4))
    (found,) = service.until_told(1, windows=lambda: losing(service))
    assert not found.is_lost
    assert found.recorded.gain == pytest.approx(1.4)


def test_whoever_is_told_cannot_end_the_windows(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Watch):
        def gain_found(self, found: LiveGain, /) -> None:
            super().gain_found(found)
            raise OSError("no space left on device")

    service = Serving(Failing())
    service.until_told(2, windows=lambda: losing(service))
    assert "could not be told" in caplog.text


def test_calls_of_several_windows_save_the_host_and_that_is_a_gain() -> None:
    """Windows of 2.4 ms in place of 2.0, but three of four without the host's millisecond; one draft in ten is kept."""
    service = Serving()

    def four() -> None:
        for number in range(4):
            service.window(1 if service.windows % 10 == 0 else 0, window_s=0.0024, joins=number > 0)

    def plain() -> None:
        service.window(None, window_s=0.0020)

    for _ in range(20):
        plain()
    (found,) = service.until_told(1, windows=four)
    # Without calls: 3 ms for a token; with them 2.65 ms for 1.1.
    assert found.found.gain == pytest.approx(1.1 * 3.0 / 2.65, rel=0.02)
    assert not found.is_lost


def test_windows_without_drafts_inside_a_call_are_no_plain_windows() -> None:
    """A call knows its own seconds, not those of its windows."""
    service = Serving()

    def call() -> None:
        service.window(3, window_s=0.030)
        service.window(None, window_s=0.030, joins=True)

    (found,) = service.until_told(1, windows=call)
    assert found.plain_windows == "recorded"
    assert found.windows == 2 * found.drafted_windows
