"""One reply in this process: tokenizer, engine and drafter without Ray. The same programs as the service."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deployments.ingress.decoding import IncrementalDecoder
from deployments.ingress.statistics import timings
from deployments.lm.drafting.build import build_strategy
from deployments.lm.drafting.ngram import NgramSettings
from deployments.lm.quant.linear import Precision
from deployments.messages.errors import ContextTooLong
from deployments.messages.generation import (
    ChatTurn,
    EncodedPrompt,
    GenerateRequest,
    GenerationStatistics,
    SamplingSettings,
    TokenTable,
)
from deployments.tokenizer.deployment import TokenizerServer
from deployments.verifier.counters import ENGINE_METRICS
from deployments.verifier.drafts import NoDrafts
from deployments.verifier.engine import Engine
from deployments.verifier.loading import load_model
from deployments.verifier.onboard import OnboardDrafts
from deployments.verifier.sizing import ModelSettings
from serve_app.config import AppConfig
from serve_app.metrics import ReplicaMetrics
from serve_app.model_fetch import resolve_model


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """What `outrider generate` was asked."""

    prompt: str
    max_tokens: int
    temperature: float
    seed: int
    draft_k: int
    context: int
    precision: str


def generate_reply(model: str, *, options: GenerateOptions, write: Callable[[str], None]) -> dict[str, Any]:
    """Writes the reply piece by piece and returns its `timings`."""
    path = resolve_model(model)
    tokenizer = TokenizerServer(model=str(path), locate=resolve_model, metrics=ReplicaMetrics())
    prompt, table = asyncio.run(_encode(tokenizer, prompt=options.prompt))
    room = options.context - len(prompt.token_ids)
    if room < 1:
        raise ContextTooLong(
            f"the prompt has {len(prompt.token_ids)} tokens and the context holds {options.context}; raise --ctx"
        )
    loaded = load_model(
        ModelSettings(
            model_path=str(path),
            precision=Precision(options.precision),
            slots=1,
            context=options.context,
            draft_k=options.draft_k,
            compile_cache=AppConfig().verifier.compile_cache,
        ),
        progress=lambda text: print(text, file=sys.stderr, flush=True),
    )
    strategy = build_strategy(NgramSettings(max_k=max(options.draft_k, 1)))
    engine = loaded.engine(
        drafts=OnboardDrafts(strategy) if options.draft_k else NoDrafts(), metrics=ReplicaMetrics()(ENGINE_METRICS)
    )
    engine.submit(
        GenerateRequest(
            request_id="generate",
            prompt_ids=prompt.token_ids,
            max_tokens=min(options.max_tokens, room),
            sampling=SamplingSettings(temperature=options.temperature, seed=options.seed & 0xFFFFFFFF),
            end_ids=table.end_ids,
        )
    )
    return timings(_run(engine, table=table, write=write))


async def _encode(tokenizer: TokenizerServer, *, prompt: str) -> tuple[EncodedPrompt, TokenTable]:
    table = await tokenizer.table()
    if table.has_chat_template:
        return await tokenizer.encode_chat((ChatTurn(role="user", content=prompt),)), table
    return await tokenizer.encode_text(prompt), table


def _run(engine: Engine, *, table: TokenTable, write: Callable[[str], None]) -> GenerationStatistics:
    decoder = IncrementalDecoder(table=table)
    statistics = GenerationStatistics()
    while not engine.is_idle:
        for delivery in engine.step():
            if delivery.error is not None:
                raise delivery.error
            if delivery.chunk is not None:
                write("".join(decoder.decode(token) for token in delivery.chunk.token_ids))
                statistics = delivery.chunk.statistics
    write(decoder.flush())
    return statistics
