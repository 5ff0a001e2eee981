"""Chunks that follow each other closely travel as one; nothing is lost, reordered or held for long."""

from random import Random

import pytest

from deployments.messages.errors import Unavailable
from deployments.messages.generation import FinishReason, GenerationStatistics, TokenChunk, TokenLogprob
from deployments.verifier.delivery import Delivery
from deployments.verifier.pacing import Pacer, joined


def chunk(name: str, *tokens: int, finish: FinishReason | None = None) -> Delivery:
    return Delivery(request_id=name, chunk=TokenChunk(token_ids=tokens, finish_reason=finish))


def sent(deliveries: list[Delivery]) -> dict[str, list[int]]:
    return {one.request_id: list(one.chunk.token_ids) for one in deliveries if one.chunk is not None}


def test_the_first_chunk_goes_out_at_once_and_the_next_wait_together() -> None:
    pacer = Pacer(interval_s=0.002)
    assert sent(pacer.release([chunk("r", 1)], now=0.0)) == {"r": [1]}
    assert sent(pacer.release([chunk("r", 2)], now=0.001)) == {}
    assert sent(pacer.release([chunk("r", 3)], now=0.002)) == {"r": [2, 3]}
    assert sent(pacer.release([chunk("r", 4)], now=0.003)) == {}


def test_the_end_takes_what_was_held_with_it() -> None:
    pacer = Pacer(interval_s=9.0)
    pacer.release([chunk("r", 1), chunk("r", 2)], now=0.0)
    last = pacer.release([chunk("r", 3, finish=FinishReason.STOP)], now=0.0)
    assert sent(last) == {"r": [2, 3]}
    assert last[0].chunk is not None
    assert last[0].chunk.finish_reason is FinishReason.STOP
    assert sent(pacer.release([], now=99.0)) == {}


def test_an_error_comes_after_what_was_held() -> None:
    pacer = Pacer(interval_s=9.0)
    pacer.release([chunk("r", 1), chunk("r", 2)], now=0.0)
    error = Delivery(request_id="r", error=Unavailable("away"))
    first, second = pacer.release([error], now=0.0)
    assert sent([first]) == {"r": [2]}
    assert second is error
    assert pacer.release([error], now=0.0) == [error]


def test_a_reply_that_pauses_does_not_keep_what_it_has() -> None:
    pacer = Pacer(interval_s=0.002)
    pacer.release([chunk("paused", 1)], now=0.0)
    assert sent(pacer.release([chunk("paused", 2), chunk("other", 7)], now=0.001)) == {"other": [7]}
    assert sent(pacer.release([], now=0.002)) == {"paused": [2]}


def test_what_is_cancelled_is_dropped() -> None:
    pacer = Pacer(interval_s=0.002)
    pacer.release([chunk("r", 1), chunk("r", 2)], now=0.0)
    pacer.forget("r")
    pacer.forget("never")
    assert pacer.release([], now=9.0) == []


@pytest.mark.parametrize(("streams", "held_s"), [(1, 0.016), (2, 0.032), (100, 0.04)])
def test_few_streams_are_held_less(streams: int, held_s: float) -> None:
    pacer = Pacer(interval_s=0.04)
    for number in range(streams):
        pacer.release([chunk(f"r{number}", 1)], now=0.0)
    again = [chunk(f"r{streams - 1}", 2)]
    assert sent(pacer.release(again, now=held_s - 0.001)) == {}
    assert sent(pacer.release([], now=held_s)) == {f"r{streams - 1}": [2]}


def test_zero_holds_nothing_back() -> None:
    pacer = Pacer(interval_s=0.0)
    for now in (0.0, 0.0, 0.1):
        assert sent(pacer.release([chunk("r", 1), chunk("s", 2)], now=now)) == {"r": [1], "s": [2]}


def test_no_token_is_lost_or_moved_whatever_the_pace() -> None:
    random = Random(5)
    for interval_s in (0.0, 0.003, 0.03):
        pacer = Pacer(interval_s=interval_s)
        written: dict[str, list[int]] = {f"r{i}": [] for i in range(6)}
        read: dict[str, list[int]] = {name: [] for name in written}
        for window in range(400):
            last = window == 399
            deliveries = []
            for name, tokens in written.items():
                fresh = tuple(random.randrange(9) for _ in range(random.randrange(4)))
                if fresh or last:
                    tokens.extend(fresh)
                    deliveries.append(chunk(name, *fresh, finish=FinishReason.LENGTH if last else None))
            for name, arrived in _in_order(pacer.release(deliveries, now=window * 0.001)):
                read[name].extend(arrived)
        assert read == written


def _in_order(deliveries: list[Delivery]) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.request_id, one.chunk.token_ids) for one in deliveries if one.chunk is not None]


def test_the_statistics_of_a_joined_chunk_are_the_later_ones() -> None:
    first = TokenChunk(token_ids=(1,), statistics=GenerationStatistics(predicted_n=1))
    second = TokenChunk(token_ids=(2, 3), statistics=GenerationStatistics(predicted_n=3))
    assert joined(first, then=second) == TokenChunk(token_ids=(1, 2, 3), statistics=second.statistics)


def test_every_token_of_a_joined_chunk_keeps_its_probability() -> None:
    told = [TokenLogprob(logprob=-0.5 * place) for place in range(3)]
    first = TokenChunk(token_ids=(1,), logprobs=(told[0],))
    second = TokenChunk(token_ids=(2, 3), logprobs=(told[1], told[2]))
    assert joined(first, then=second).logprobs == tuple(told)
    empty_end = TokenChunk(token_ids=(), finish_reason=FinishReason.STOP, logprobs=())
    assert joined(first, then=empty_end).logprobs == (told[0],)
