"""The real model through the running graph: whatever drafts, over its socket, the reply is the plain one.

`outrider exact` asks more of the same, for longer.
"""

import asyncio
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from deployments.ingress.decoding import IncrementalDecoder
from deployments.messages.generation import SpeculationSettings, TokenTable
from serve_app.local import Service
from serve_app.prompts import Prompt, load_prompts
from serve_app.proving.asking import replies_to
from serve_app.proving.comparison import Replies, compare
from serve_app.proving.rungs import write_oracle
from serve_app.proving.workload import PLAIN, SPECULATING, Mode, Question, ask_all
from tests.graph.stage import Stage, app_config, metrics, tokenizer_client, verifier_client

# The first start of a fresh machine compiles.
pytestmark = [pytest.mark.serve, pytest.mark.model, pytest.mark.timeout(900)]

PROMPTS = load_prompts("quick")
TOKENS = 32
STREAMS = 8
DRAFT_K = 7


class Perform(Protocol):
    """Starts the real model with a drafter, unless it is running already."""

    def __call__(self, drafter: dict[str, Any], **verifier: Any) -> Service: ...


@pytest.fixture(scope="module")
def perform(the_stage: Stage, smollm2_path: Path) -> Perform:
    def perform(drafter: dict[str, Any], **verifier: Any) -> Service:
        settings = {"context": 1024, "draft_k": DRAFT_K, "draft_deadline_ms": 50, **verifier}
        return the_stage.service(app_config(smollm2_path, drafter=drafter, **settings))

    return perform


@pytest.fixture
def ngram_service(perform: Perform) -> Service:
    return perform({"kind": "ngram"})


class Knowledge:
    """What the first test finds out and the others compare with."""

    def __init__(self) -> None:
        self.asked: tuple[Question, ...] = ()
        self.table: TokenTable | None = None
        self.plain: Replies = {}


@pytest.fixture(scope="module")
def known(perform: Perform) -> Knowledge:
    """Questions and their plain replies, one prompt greedy, the next one sampled."""
    perform({"kind": "ngram"})
    knowledge = Knowledge()

    async def learn() -> None:
        every = await ask_all(PROMPTS, tokenizer=tokenizer_client(), tokens=TOKENS, context=1024)
        assert len(every) == len(Mode) * len(PROMPTS)
        knowledge.asked = tuple(every[len(Mode) * place + place % len(Mode)] for place in range(len(PROMPTS)))
        knowledge.table = await tokenizer_client().table()
        knowledge.plain = await ask(knowledge.asked, speculation=PLAIN)

    asyncio.run(learn())
    return knowledge


async def ask(
    asked: tuple[Question, ...], /, *, speculation: SpeculationSettings = SPECULATING, streams: int = STREAMS
) -> Replies:
    return await replies_to(asked, verifier=verifier_client(), streams=streams, speculation=speculation)


def drafted(replies: Replies) -> int:
    return sum(reply.statistics.draft_n for reply in replies.values())


def accepted(replies: Replies) -> int:
    return sum(reply.statistics.draft_n_accepted for reply in replies.values())


async def test_alone_is_as_in_company(ngram_service: Service, known: Knowledge) -> None:
    alone = await ask(known.asked[::8], speculation=PLAIN, streams=1)
    assert compare(alone, plain=known.plain).first is None
    assert drafted(alone) == drafted(known.plain) == 0


@pytest.mark.parametrize("most", [3, DRAFT_K])
async def test_ngram_drafts_change_no_token(ngram_service: Service, known: Knowledge, most: int) -> None:
    fast = await ask(known.asked, speculation=SpeculationSettings(max_draft=most))
    seen = compare(fast, plain=known.plain)
    assert (seen.mismatches, seen.first, seen.replies) == (0, None, len(PROMPTS))
    assert accepted(fast) > 100, "copying should pay on prompts to copy"


async def test_over_http_the_text_is_the_plain_one(ngram_service: Service, known: Knowledge) -> None:
    gate = asyncio.Semaphore(STREAMS)
    async with httpx.AsyncClient(base_url=ngram_service.url, timeout=120.0) as client:

        async def one(prompt: Prompt, question: Question) -> dict[str, Any]:
            sampling = question.request.sampling
            body = {
                "model": ngram_service.model,
                "messages": [{"role": "user", "content": prompt.text}],
                "max_tokens": TOKENS,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "seed": sampling.seed,
            }
            async with gate:
                answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            reply: dict[str, Any] = answer.json()
            return reply

        answers = await asyncio.gather(*(one(*pair) for pair in zip(PROMPTS, known.asked, strict=True)))
    assert known.table is not None
    for question, answer in zip(known.asked, answers, strict=True):
        plain = known.plain[question.name]
        assert answer["choices"][0]["message"]["content"] == text_of(plain.token_ids, table=known.table), question.name
        assert answer["choices"][0]["finish_reason"] == plain.finish_reason.value
    assert sum(answer["timings"].get("draft_n_accepted", 0) for answer in answers) > 50


def text_of(token_ids: tuple[int, ...], *, table: TokenTable) -> str:
    decoder = IncrementalDecoder(table=table)
    return "".join(decoder.decode(token) for token in token_ids) + decoder.flush()


async def test_random_drafts_over_the_socket_change_no_token(perform: Perform, known: Knowledge) -> None:
    """With other window sizes, too: they are quicker to prove at the start, and must not matter."""
    assert known.table is not None
    service = perform({"kind": "random", "vocabulary": len(known.table.ends)}, ladder=(8, 64))
    replies = await ask(known.asked)
    seen = compare(replies, plain=known.plain)
    assert (seen.mismatches, seen.first, seen.replies) == (0, None, len(PROMPTS))
    assert drafted(replies) > DRAFT_K * len(PROMPTS)
    assert metrics(service.url).total("drafter_tokens_proposed_total") >= drafted(replies)


@pytest.mark.slow
async def test_right_drafts_over_the_socket_are_all_accepted(
    perform: Perform, known: Knowledge, oracle_file: Path
) -> None:
    write_oracle(oracle_file, questions=known.asked, plain=known.plain)
    perform({"kind": "oracle", "path": str(oracle_file)}, ladder=(16, 32))
    replies = await ask(known.asked)
    seen = compare(replies, plain=known.plain)
    assert (seen.mismatches, seen.first, seen.replies) == (0, None, len(PROMPTS))
    assert accepted(replies) == drafted(replies)
    assert accepted(replies) > TOKENS * len(PROMPTS) // 2
