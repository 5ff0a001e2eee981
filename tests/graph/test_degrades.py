"""Drafters that die, hang, dawdle and lie: replies stay the same, token for token, and only counters tell."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest

from deployments.lm.quant.linear import Precision
from deployments.messages.drafting import AcceptedPrefix, DraftBlock, ToDrafter, ToVerifier
from deployments.messages.generation import Decline, GenerateRequest, SamplingSettings, SpeculationSettings
from deployments.verifier.counters import ENGINE_METRICS
from deployments.verifier.drafts import NoDrafts
from deployments.verifier.link_counters import LINK_COUNTERS
from deployments.verifier.links import DrafterLinks, LinkSettings
from deployments.verifier.loading import LoadedModel, load_model
from deployments.verifier.remote import RemoteDrafts
from deployments.verifier.sizing import ModelSettings
from serve_app.config import VerifierConfig
from serve_app.local import Service
from serve_app.proving.asking import replies_to
from serve_app.proving.comparison import Replies, compare
from serve_app.proving.rungs import run_engine, write_oracle
from serve_app.proving.workload import PLAIN, SPECULATING, Mode, Question
from tests.drafter.tally import Tally
from tests.graph.stage import metrics, replica_pids, until, verifier_client
from tests.verifier.drafters import Answer, FakeDrafter, echo, fake_drafter

pytestmark = pytest.mark.serve

type Conduct = Callable[[AcceptedPrefix], list[ToVerifier] | bytes | None]

STREAMS = 8
RETURN_S = 15.0
"""Within which speculation must be back after a drafter's restart."""


def questions(*, tokens: int) -> tuple[Question, ...]:
    """Greedy and sampled in turn, of different prompts."""
    return tuple(
        Question(
            mode=mode,
            request=GenerateRequest(
                request_id=f"{mode} {index}",
                prompt_ids=tuple(range(20 + 7 * index, 60 + 7 * index)),
                max_tokens=tokens,
                sampling=SamplingSettings(temperature=0.0 if mode is Mode.GREEDY else 0.9, seed=index),
            ),
        )
        for index, mode in enumerate(list(Mode) * (STREAMS // len(Mode)))
    )


ASKED = questions(tokens=440)


def declined(replies: Replies, *reasons: Decline) -> int:
    return sum(reply.statistics.declined.get(reason, 0) for reply in replies.values() for reason in reasons)


def drafted(replies: Replies) -> int:
    return sum(reply.statistics.draft_n for reply in replies.values())


async def replies(speculation: SpeculationSettings, *, asked: tuple[Question, ...] = ASKED) -> Replies:
    return await replies_to(asked, verifier=verifier_client(), streams=STREAMS, speculation=speculation)


async def plain_replies(oracle_file: Path) -> Replies:
    """Told to the oracle as well, so that from now on it is right."""
    plain = await replies(PLAIN)
    write_oracle(oracle_file, questions=ASKED, plain=plain)
    return plain


def short_question() -> Question:
    """A question of the oracle's, cut short, under a name of its own."""
    request = msgspec.structs.replace(ASKED[0].request, request_id=f"short {time.monotonic_ns()}", max_tokens=12)
    return Question(mode=Mode.GREEDY, request=request)


@asynccontextmanager
async def running_streams(url: str) -> AsyncIterator[asyncio.Task[Replies]]:
    """Eight streams that have drawn a good part of their tokens, and have far to go."""
    before = metrics(url).total("generation_tokens_total")
    task = asyncio.create_task(replies(SPECULATING))
    part = STREAMS * 440 // 5
    await asyncio.to_thread(
        until,
        lambda: metrics(url).total("generation_tokens_total") - before,
        holds=lambda drawn: drawn > part,
        within_s=30.0,
    )
    yield task
    await task


async def until_speculating() -> None:
    """Returns once a new request gets drafts, and fails when that takes too long."""
    deadline = time.monotonic() + RETURN_S
    for _ in range(1000):
        if drafted(await replies(SPECULATING, asked=(short_question(),))):
            return
        assert time.monotonic() < deadline, f"no drafts {RETURN_S} s after the drafter's return"
        await asyncio.sleep(0.1)


async def test_with_a_drafter_the_replies_are_the_plain_ones(oracle_service: Service, oracle_file: Path) -> None:
    plain = await plain_replies(oracle_file)
    fast = await replies(SPECULATING)
    assert compare(fast, plain=plain).first is None
    assert sum(reply.statistics.draft_n_accepted for reply in fast.values()) == drafted(fast) > 1000


async def test_streams_survive_the_death_of_the_drafter(oracle_service: Service, oracle_file: Path) -> None:
    plain = await plain_replies(oracle_file)
    (victim,) = replica_pids("drafter")
    async with running_streams(oracle_service.url) as streams:
        os.kill(victim, signal.SIGKILL)
    assert compare(streams.result(), plain=plain).first is None
    assert drafted(streams.result()) > 0
    assert declined(streams.result(), Decline.DRAFTER_UNREACHABLE, Decline.LATE) > 0, "it died too late to matter"
    fresh = until(lambda: replica_pids("drafter") - {victim}, holds=bool, within_s=60.0)
    await until_speculating()
    assert replica_pids("drafter") == fresh
    assert compare(await replies(SPECULATING), plain=plain).first is None
    page = metrics(oracle_service.url)
    assert page.total("drafter_links_lost_total") > 0
    assert page.total("drafter_link_connects_total", outcome="connected") == 2


async def test_streams_survive_a_drafter_that_hangs(oracle_service: Service, oracle_file: Path) -> None:
    plain = await plain_replies(oracle_file)
    await until_speculating()
    (stuck,) = replica_pids("drafter")
    try:
        async with running_streams(oracle_service.url) as streams:
            os.kill(stuck, signal.SIGSTOP)
        assert compare(streams.result(), plain=plain).first is None
        assert drafted(streams.result()) > 0
        assert declined(streams.result(), Decline.LATE) > 0, "it hung too late to matter"
        assert declined(streams.result(), Decline.DRAFTER_UNREACHABLE) > 0, "it was never left alone"
        assert metrics(oracle_service.url).total("draft_blocks_late_total") > 0
    finally:
        os.kill(stuck, signal.SIGCONT)
    await until_speculating()
    assert replica_pids("drafter") == {stuck}


@pytest.fixture(scope="module")
def golden_model(golden_llama: Path) -> LoadedModel:
    """The same model in this process, for drafters that no deployment would run."""
    return load_model(
        ModelSettings(
            model_path=str(golden_llama / "llama.f16.gguf"),
            precision=Precision.F32,
            context=256,
            compile_cache=VerifierConfig().compile_cache,
        ),
        progress=lambda _: None,
    )


def answering(reply: Conduct) -> Answer:
    """Commits are answered as told, pings honestly."""

    def answer(message: ToDrafter) -> list[ToVerifier] | bytes | None:
        return reply(message) if isinstance(message, AcceptedPrefix) else echo(message)

    return answer


def block(message: AcceptedPrefix, *, tokens: tuple[int, ...], ahead: int = 0, later: int = 0) -> list[ToVerifier]:
    return [
        DraftBlock(
            request_id=message.request_id,
            base_len=message.base_len + len(message.token_ids) + ahead,
            generation=message.generation + later,
            token_ids=tokens,
        )
    ]


def dawdle(message: AcceptedPrefix) -> list[ToVerifier]:
    time.sleep(0.02)
    return block(message, tokens=(1, 2, 3))


ROGUES: dict[str, tuple[Conduct, str]] = {
    "says nothing": (lambda _: [], "draft_blocks_late"),
    "is late": (dawdle, "draft_blocks_late"),
    "hangs up": (lambda _: None, "drafter_links_lost"),
    "sends noise": (lambda _: bytes(range(256)), "draft_malformed"),
    "sends a frame of 4 GB": (lambda _: b"\xff\xff\xff\xff", "draft_malformed"),
    "names tokens there are not": (lambda m: block(m, tokens=(1, 2**31, 3)), "draft_malformed"),
    "names negative tokens": (lambda m: block(m, tokens=(-1,)), "draft_malformed"),
    "sends too many": (lambda m: block(m, tokens=(1,) * 500), "draft_malformed"),
    "answers before it was asked": (lambda m: block(m, tokens=(1,), later=1), "draft_malformed"),
    "answers the last round": (lambda m: block(m, tokens=(1, 2, 3), ahead=-1), "draft_blocks_stale"),
    "is always wrong": (lambda m: block(m, tokens=(1, 2, 3)), "spec_decode_num_drafts"),
}


@contextmanager
def linked(fake: FakeDrafter, *, model: LoadedModel, tally: Tally) -> Iterator[RemoteDrafts]:
    settings = LinkSettings(verifier="v", vocab_size=model.config.vocabulary, k_max=3, deadline_s=0.005)
    links = DrafterLinks(settings=settings, metrics=tally)
    try:
        links.update([fake.endpoint])
        until(lambda: links.live, holds=bool, within_s=5.0)
        yield RemoteDrafts(links)
    finally:
        links.shut()


@pytest.mark.parametrize("conduct", ROGUES)
def test_a_rogue_changes_nothing_but_counters(golden_model: LoadedModel, conduct: str) -> None:
    asked = questions(tokens=60)
    tally = Tally((*ENGINE_METRICS, *LINK_COUNTERS))
    plain = run_engine(golden_model.engine(drafts=NoDrafts(), metrics=tally), questions=asked)
    reply, counted = ROGUES[conduct]
    with fake_drafter(answer=answering(reply)) as fake, linked(fake, model=golden_model, tally=tally) as drafts:
        tally.values.clear()
        seen = run_engine(golden_model.engine(drafts=drafts, metrics=tally), questions=asked)
    assert compare(seen, plain=plain).first is None
    assert tally.values[counted] > 0, tally.values
