"""Prompts that begin alike are computed once, by the engine over a network that can be computed by hand."""

from random import Random

import pytest
from msgspec.structs import replace

from deployments.messages.errors import Unavailable
from deployments.messages.generation import GenerateRequest, SamplingSettings
from deployments.verifier.drafts import NoDrafts
from deployments.verifier.engine import Engine
from tests.verifier.recalling import VOCABULARY, recalling_engine
from tests.verifier.serving import Reply, Tallies, serve
from tests.verifier.test_engine import Guessing, assert_whole, request


def alike(count: int, *, prompt: int, tokens: int) -> list[GenerateRequest]:
    """Different seeds, one prompt."""
    text = tuple(Random(7).randrange(VOCABULARY) for _ in range(prompt))
    return [
        GenerateRequest(
            request_id=f"r{number}", prompt_ids=text, max_tokens=tokens, sampling=SamplingSettings(seed=number)
        )
        for number in range(count)
    ]


def test_eight_of_one_prompt_compute_it_once() -> None:
    """The others wait for its pages, then run what is not a whole page themselves."""
    engine, programs = recalling_engine(NoDrafts(), slots=8, rows=(8, 16, 32))
    requests = alike(8, prompt=42, tokens=3)

    replies = serve(engine, requests)

    cached = [reply.statistics.cache_n for reply in replies.values()]
    assert cached == [0] + [40] * 7
    assert sum(reply.statistics.prompt_n for reply in replies.values()) == 42 + 7 * 2
    for one in requests:
        assert_whole(replies[one.request_id], of=one)
    assert programs.windows <= 8


def turn(engine: Engine, one: GenerateRequest) -> Reply:
    return serve(engine, [one])[one.request_id]


def test_a_second_turn_reuses_what_decoding_wrote() -> None:
    engine, _ = recalling_engine(Guessing(skill=0.8))
    first = request(1, prompt=10, tokens=20)
    reply = turn(engine, first)
    # 30 tokens, of which the last one is not in the cache: 7 whole pages of 4.
    second = replace(first, request_id="second", prompt_ids=(*first.prompt_ids, *reply.tokens, 1, 2, 3))

    again = turn(engine, second)

    assert (again.statistics.cache_n, again.statistics.prompt_n) == (28, 5)
    assert_whole(again, of=second)


def test_a_hit_never_covers_the_last_token_of_a_prompt() -> None:
    engine, _ = recalling_engine(NoDrafts())
    for length, cached in ((8, 4), (9, 8), (12, 8), (13, 12)):
        one = request(0, prompt=length, tokens=2)
        turn(engine, replace(one, request_id="first"))
        again = turn(engine, replace(one, request_id="again"))
        assert again.statistics.cache_n == cached
        assert_whole(again, of=one)


def test_a_request_may_keep_out_of_the_cache() -> None:
    tallies = Tallies()
    engine, _ = recalling_engine(NoDrafts(), metrics=tallies)
    one = request(0, prompt=20, tokens=2)
    private = replace(one, request_id="private", cache_prompt=False)

    assert turn(engine, private).statistics.cache_n == 0
    assert turn(engine, one).statistics.cache_n == 0
    assert turn(engine, private).statistics.cache_n == 0
    assert tallies.counters["prefix_cache_queries"] == 20
    assert turn(engine, replace(one, request_id="again")).statistics.cache_n == 16
    assert tallies.counters["prefix_cache_hits"] == 16


def test_a_failed_window_empties_the_prefix_cache() -> None:
    engine, programs = recalling_engine(NoDrafts())
    one = request(0, prompt=20, tokens=2)
    turn(engine, one)
    engine.fail_all(Unavailable("a window failed"))
    programs.clear_cache()

    again = turn(engine, one)
    assert again.statistics.cache_n == 0
    assert_whole(again, of=one)


@pytest.mark.parametrize(("which", "cached"), [("new", 24), ("old", 4)])
def test_old_pages_go_first_and_ends_of_conversations_before_their_beginnings(which: str, cached: int) -> None:
    tallies = Tallies()
    engine, _ = recalling_engine(NoDrafts(), pages=17, metrics=tallies)
    asked = {name: request(number, prompt=28, tokens=1) for name, number in (("old", 1), ("new", 3), ("other", 5))}
    turn(engine, asked["old"])
    turn(engine, asked["new"])
    assert tallies.gauges["pages_cached"] == 14
    turn(engine, asked["other"])

    # Eight pages were needed and two were free: six of `old` went, its last ones.
    assert tallies.counters["pages_evicted"] == 6
    assert turn(engine, replace(asked[which], request_id="again")).statistics.cache_n == cached
