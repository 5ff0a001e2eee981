"""From a valid request to what the verifier is asked: ids, sampling, limits. Generates nothing."""

import asyncio
import secrets
import time
from collections.abc import Awaitable
from dataclasses import dataclass

from deployments.ingress.errors import FieldError
from deployments.ingress.facts import Facts
from deployments.ingress.schemas import ChatBody, CompletionBody, GenerationBody, Prompt
from deployments.messages.errors import ContextTooLong, Unavailable
from deployments.messages.generation import (
    ChatTurn,
    EncodedPrompt,
    GenerateRequest,
    SamplingSettings,
    SpeculationSettings,
)
from deployments.messages.ports import TokenizerPort

_COMPLETION_TOKENS = 16
"""What OpenAI's completions route generates when it is not told."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One HTTP request, ready to be generated.

    Attributes:
        reply_id: as the client sees it.
        requests: one per choice; the position is the choice's `index` in the answer.
        prompt_tokens: each prompt counted once, however many choices it has.
        prompt_starts: positions in `requests` at which a new prompt begins.
        max_draft: the most drafts a window may hold for this request.
    """

    reply_id: str
    created: int
    facts: Facts
    requests: tuple[GenerateRequest, ...]
    stops: tuple[str, ...]
    prompt_tokens: int
    prompt_starts: frozenset[int]
    max_draft: int


class Planner:
    """Encodes prompts and settles what the request leaves open."""

    def __init__(self, *, tokenizer: TokenizerPort, timeout_s: float) -> None:
        self._tokenizer = tokenizer
        self._timeout_s = timeout_s

    async def chat(self, body: ChatBody, /, *, facts: Facts) -> Plan:
        """Raises `ContextTooLong`, `InvalidRequest` or `Unavailable`."""
        if not facts.table.has_chat_template:
            raise FieldError(f"{facts.model} has no chat template; use /v1/completions instead.", "messages")
        turns = tuple(ChatTurn(role=message.role, content=message.content) for message in body.messages)
        encoded = await self._answered(self._tokenizer.encode_chat(turns))
        return _plan(body, facts=facts, prompts=(encoded.token_ids,), prefix="chatcmpl", limit=None, field="messages")

    async def completion(self, body: CompletionBody, /, *, facts: Facts) -> Plan:
        """Raises `ContextTooLong`, `InvalidRequest` or `Unavailable`."""
        prompts = [await self._ids(prompt, vocabulary=facts.vocabulary) for prompt in body.prompt]
        return _plan(body, facts=facts, prompts=tuple(prompts), prefix="cmpl", limit=_COMPLETION_TOKENS, field="prompt")

    async def _ids(self, prompt: Prompt, /, *, vocabulary: int) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return (await self._answered(self._tokenizer.encode_text(prompt))).token_ids
        if max(prompt) >= vocabulary:
            raise FieldError(f"prompt should hold token ids below {vocabulary}, not {max(prompt)}.", "prompt")
        return prompt

    async def _answered(self, encoding: Awaitable[EncodedPrompt], /) -> EncodedPrompt:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await encoding
        except TimeoutError:
            raise Unavailable("The tokenizer does not answer; try again in a moment.") from None


def _plan(
    body: GenerationBody,
    /,
    *,
    facts: Facts,
    prompts: tuple[tuple[int, ...], ...],
    prefix: str,
    limit: int | None,
    field: str,
) -> Plan:
    reply_id = f"{prefix}-{secrets.token_hex(12)}"
    sampling = _sampling(body, vocabulary=facts.vocabulary)
    speculation, max_draft = _speculation(body, facts=facts)
    choices = body.choices_per_prompt
    requests = tuple(
        GenerateRequest(
            request_id=f"{reply_id}-{position * choices + choice}",
            prompt_ids=prompt,
            max_tokens=_max_tokens(body, prompt=prompt, context=facts.card.context, limit=limit, field=field),
            sampling=sampling,
            choice=choice,
            end_ids=facts.table.end_ids,
            min_tokens=body.min_tokens or 0,
            ignore_eos=bool(body.ignore_eos),
            logprobs=body.alternatives,
            speculation=speculation,
            cache_prompt=body.cache_prompt is not False,
            priority=body.priority or 0,
            deadline_s=body.deadline_s,
        )
        for position, prompt in enumerate(prompts)
        for choice in range(choices)
    )
    return Plan(
        reply_id=reply_id,
        created=int(time.time()),
        facts=facts,
        requests=requests,
        stops=body.stop,
        prompt_tokens=sum(len(prompt) for prompt in prompts),
        prompt_starts=frozenset(range(0, len(requests), choices)),
        max_draft=max_draft,
    )


def _max_tokens(
    body: GenerationBody, /, *, prompt: tuple[int, ...], context: int, limit: int | None, field: str
) -> int:
    """What the client asks for, which must fit; or `limit` and what fits, if it does not ask."""
    if not prompt:
        raise FieldError(f"{field} has no tokens; send some text.", field)
    room = context - len(prompt)
    if room < 1:
        raise ContextTooLong(
            f"The prompt has {len(prompt)} tokens and the context of this model is {context}, reply included; "
            "shorten the prompt.",
            field,
        )
    asked = body.token_limit
    if asked is None:
        asked = room if limit is None else min(limit, room)
    if asked < (body.min_tokens or 0):
        raise FieldError(f"min_tokens should be at most max_tokens, which is {asked} here.", "min_tokens")
    if asked > room:
        raise ContextTooLong(
            f"The prompt has {len(prompt)} tokens and {asked} more are asked for, but the context of this model is "
            f"{context}; shorten the prompt or ask for at most {room}.",
            field,
        )
    return asked


def _sampling(body: GenerationBody, /, *, vocabulary: int) -> SamplingSettings:
    """OpenAI allows `top_p: 0`: it leaves the most likely token alone, which is what temperature 0 takes."""
    seed = secrets.randbits(32) if body.short_seed is None else body.short_seed
    greedy = body.temperature == 0.0 or body.top_p == 0.0
    strange = max((token for token, _ in body.logit_bias), default=0)
    if strange >= vocabulary:
        raise FieldError(f"logit_bias should name token ids below {vocabulary}, not {strange}.", "logit_bias")
    return SamplingSettings(
        temperature=0.0 if greedy else 1.0 if body.temperature is None else body.temperature,
        top_k=min(max(body.top_k or 0, 0), vocabulary),
        top_p=body.top_p or 1.0,
        min_p=body.min_p or 0.0,
        seed=seed,
        repetition_penalty=body.repetition,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=body.logit_bias,
    )


def _speculation(body: GenerationBody, /, *, facts: Facts) -> tuple[SpeculationSettings, int]:
    """What the verifier is told, and the longest draft that can come of it."""
    wanted = body.speculation
    if wanted is None:
        return SpeculationSettings(), facts.card.max_draft
    longest = facts.card.max_draft if wanted.max_draft is None else min(wanted.max_draft, facts.card.max_draft)
    enabled = wanted.enabled is not False
    return SpeculationSettings(enabled=enabled, max_draft=wanted.max_draft), longest if enabled else 0
