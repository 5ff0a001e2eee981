"""The proof of exactness: the same questions to the running graph with every drafter, and to every window size.

The plain replies come from a service without a drafter, one request at a time. Each drafter is then a service of its
own, whose verifier was compiled for it, and whose drafts come over its socket.
"""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

from ray import serve

from deployments.ingress.clients import TokenizerClient, VerifierClient
from deployments.messages.generation import SpeculationSettings
from deployments.verifier.loading import load_model
from serve_app.config import AppConfig
from serve_app.local import APP, Cluster, cluster
from serve_app.prompts import load_prompts
from serve_app.proving.asking import replies_to
from serve_app.proving.comparison import Reply
from serve_app.proving.report import Proof, Row, row_of
from serve_app.proving.rungs import cache_rows, rung_rows, write_oracle
from serve_app.proving.workload import PLAIN, SPECULATING, Mode, Question, ask_all, every_nth, of_mode

SLOTS = 8
DRAFT_K = 7
_NGRAM_LENGTHS = (1, 3, 7)
# On a busy machine a draft can be late; a proof wants them all, and does not measure speed.
_DEADLINE_MS = 250.0

type Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ExactOptions:
    """What to prove.

    Attributes:
        model: a path that needs no fetching.
        alone: about how many prompts drafted requests are also run with one at a time, which takes long.
    """

    model: str
    prompts: str
    tokens: int
    precision: str
    context: int
    alone: int = 10


@dataclass(frozen=True, kw_only=True)
class _Round:
    """One row of the table: how the questions of one mode are asked."""

    drafter: str
    mode: Mode
    streams: int
    speculation: SpeculationSettings = SPECULATING
    is_plain: bool = False

    @property
    def company(self) -> str:
        return "alone" if self.streams == 1 else f"with {self.streams - 1} others"


class Prover:
    """One run of the proof.

    Args:
        say: told what happens, a sentence at a time.
    """

    def __init__(self, options: ExactOptions, /, *, say: Say) -> None:
        self._options = options
        self._say = say
        self._questions: tuple[Question, ...] = ()
        self._plain: dict[str, Reply] = {}
        self._rows: list[Row] = []
        self._vocabulary = 0

    def run(self) -> Proof:
        """Starts four services, one after the other, then an engine in this process."""
        with tempfile.TemporaryDirectory(prefix="outrider-exact-") as folder:
            oracle = Path(folder) / "oracle.json"
            oracle.write_text("[]")
            with cluster(quiet=True) as machine:
                serve_with = partial(self._serve, machine)
                serve_with({"kind": "off"}, ask=self._ask_plain)
                serve_with({"kind": "ngram"}, ask=self._ask_ngram)
                serve_with({"kind": "random", "vocabulary": self._vocabulary}, ask=self._ask_random)
                serve_with({"kind": "oracle", "path": str(oracle)}, ask=partial(self._ask_oracle, oracle=oracle))
            self._force_rungs(oracle)
        return Proof(rows=self._rows)

    def _serve(
        self, machine: Cluster, drafter: dict[str, Any], *, ask: Callable[[VerifierClient], Coroutine[Any, Any, None]]
    ) -> None:
        self._say(f"drafter {drafter['kind']}: starting the graph")
        with machine.runs(self._config(drafter)):
            asyncio.run(ask(VerifierClient(serve.get_deployment_handle("verifier", APP))))

    def _config(self, drafter: dict[str, Any]) -> AppConfig:
        options = self._options
        return AppConfig.model_validate(
            {
                "model": options.model,
                "drafter": drafter,
                "gates": {"store": ""},
                "verifier": {
                    "slots": SLOTS,
                    "context": options.context,
                    "precision": options.precision,
                    "draft_k": DRAFT_K,
                    # No limit by load: what is compared should have as many drafts as there can be.
                    "draft_rows": SLOTS * DRAFT_K,
                    "draft_deadline_ms": _DEADLINE_MS,
                    # The reference computes every prompt. All others ask the same again, and so read cached pages.
                    "prefix_cache": drafter["kind"] != "off",
                },
            }
        )

    async def _ask_plain(self, verifier: VerifierClient, /) -> None:
        options = self._options
        tokenizer = TokenizerClient(serve.get_deployment_handle("tokenizer", APP))
        self._vocabulary = len((await tokenizer.table()).ends)
        self._questions = await ask_all(
            load_prompts(options.prompts), tokenizer=tokenizer, tokens=options.tokens, context=options.context
        )
        self._say(f"{len(self._questions)} requests of at most {options.tokens} tokens, plain and alone first")
        for mode in Mode:
            await self._ask(_Round(drafter="off", mode=mode, streams=1, is_plain=True), verifier=verifier)
        for mode in Mode:
            await self._ask(_Round(drafter="off", mode=mode, streams=SLOTS), verifier=verifier)

    async def _ask_ngram(self, verifier: VerifierClient, /) -> None:
        for mode, streams in product(Mode, (1, SLOTS)):
            declined = _Round(drafter="ngram, declined", mode=mode, streams=streams, speculation=PLAIN)
            await self._ask(declined, verifier=verifier)
        for most, mode, streams in product(_NGRAM_LENGTHS, Mode, (1, SLOTS)):
            speculation = SpeculationSettings(max_draft=most)
            drafted = _Round(drafter=f"ngram {most}", mode=mode, streams=streams, speculation=speculation)
            await self._ask(drafted, verifier=verifier)

    async def _ask_random(self, verifier: VerifierClient, /) -> None:
        for mode, streams in product(Mode, (1, SLOTS)):
            await self._ask(_Round(drafter="random", mode=mode, streams=streams), verifier=verifier)

    async def _ask_oracle(self, verifier: VerifierClient, /, *, oracle: Path) -> None:
        for mode in Mode:
            # One mode at a time: with two continuations of the same prompt the oracle would have to guess.
            write_oracle(oracle, questions=of_mode(self._questions, mode=mode), plain=self._plain)
            for streams in (1, SLOTS):
                await self._ask(_Round(drafter="oracle", mode=mode, streams=streams), verifier=verifier)

    async def _ask(self, wanted: _Round, *, verifier: VerifierClient) -> None:
        questions = of_mode(self._questions, mode=wanted.mode)
        if wanted.streams == 1 and not wanted.is_plain:
            questions = every_nth(questions, most=self._options.alone)
        started = perf_counter()
        replies = await replies_to(questions, verifier=verifier, streams=wanted.streams, speculation=wanted.speculation)
        if wanted.is_plain:
            self._plain.update(replies)
        self._add(
            row_of(
                replies,
                plain=None if wanted.is_plain else self._plain,
                drafter=wanted.drafter,
                company=wanted.company,
                mode=wanted.mode,
                seconds=perf_counter() - started,
            )
        )

    def _force_rungs(self, oracle: Path) -> None:
        self._say("every window size on its own: loading the model into this process")
        settings = self._config({"kind": "ngram"}).verifier_settings().model
        questions = _half_of_each(self._questions, most=SLOTS)
        write_oracle(oracle, questions=questions, plain=self._plain)
        model = load_model(settings, progress=lambda _: None)
        for row in rung_rows(questions, model=model, plain=self._plain, oracle=oracle):
            self._add(row)
        self._say("requests preempted at random, with cached prefixes and without")
        for row in cache_rows(questions, model=model, plain=self._plain, oracle=oracle):
            self._add(row)

    def _add(self, row: Row) -> None:
        self._rows.append(row)
        self._say(row.line)


def _half_of_each(questions: Sequence[Question], *, most: int) -> tuple[Question, ...]:
    """At most so many, of different prompts, greedy and sampled in turn."""
    by_prompt = list(_pairs(questions))
    chosen = by_prompt[:: max(1, len(by_prompt) // most)][:most]
    return tuple(pair[place % len(pair)] for place, pair in enumerate(chosen))


def _pairs(questions: Sequence[Question]) -> Iterator[tuple[Question, ...]]:
    for place in range(0, len(questions), len(Mode)):
        yield tuple(questions[place : place + len(Mode)])
