"""The routes. `build_api` makes an ASGI application from ports; it starts nothing and binds no socket."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from deployments.ingress.admission import Admission
from deployments.ingress.answering import Answer
from deployments.ingress.choices import Choices
from deployments.ingress.counters import Counters
from deployments.ingress.dialects import ChatDialect, CompletionDialect, Dialect, Json
from deployments.ingress.endpoint import Door
from deployments.ingress.errors import FieldError, MethodNotAllowed, NoSuchRoute, shape_of
from deployments.ingress.exchange import Exchange
from deployments.ingress.facts import Facts, FactSource
from deployments.ingress.gathering import Gatherer
from deployments.ingress.operations import Operations
from deployments.ingress.planning import Plan, Planner
from deployments.ingress.reading import read_chat, read_completion
from deployments.ingress.schemas import GenerationBody
from deployments.ingress.settings import IngressSettings
from deployments.messages.errors import Unavailable, UnknownModel
from deployments.messages.metrics import Metrics
from deployments.messages.ports import DrafterPort, TokenizerPort, VerifierPort

_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"

type Pages = Callable[[], Awaitable[list[str]]]
"""Answers the metrics pages of every ingress replica, this one's included."""


def build_api(
    *,
    tokenizer: TokenizerPort,
    verifier: VerifierPort,
    drafter: DrafterPort | None,
    settings: IngressSettings,
    metrics: Metrics,
    siblings: Pages | None = None,
) -> Starlette:
    """The OpenAI API over these ports.

    Args:
        drafter: `None` when nothing drafts in a deployment of its own.
        siblings: how to reach every ingress replica's metrics; `None` shows this replica's alone.
    """
    counters = Counters(metrics=metrics)
    generation = _Generation(tokenizer=tokenizer, verifier=verifier, settings=settings, counters=counters)
    service = _Service(
        generation=generation,
        verifier=verifier,
        tokenizer=tokenizer,
        drafter=drafter,
        siblings=siblings,
        counters=counters,
        timeout_s=settings.gather_timeout_s,
    )
    operations = Operations(verifier=verifier, timeout_s=settings.gather_timeout_s)
    door = Door(settings=settings, counters=counters)
    routes: list[BaseRoute] = [
        Route("/v1/chat/completions", door.closed(generation.chat, route="chat"), methods=["POST"]),
        Route("/v1/completions", door.closed(generation.completion, route="completions"), methods=["POST"]),
        Route("/v1/models", door.closed(service.models, route="models"), methods=["GET"]),
        Route("/v1/models/{model:path}", door.closed(service.model, route="model"), methods=["GET"]),
        Route("/health", door.open(service.health, route="health"), methods=["GET"]),
        *operations.routes(door),
        Route("/metrics", door.open(service.metrics, route="metrics"), methods=["GET"]),
    ]
    api = Starlette(routes=routes, exception_handlers={HTTPException: _no_route, Exception: _unforeseen})
    # A redirect to the path without its slash would name whatever host the client claimed.
    api.router.redirect_slashes = False
    return api


class _Generation:
    """The two routes that generate."""

    def __init__(
        self, *, tokenizer: TokenizerPort, verifier: VerifierPort, settings: IngressSettings, counters: Counters
    ) -> None:
        self._verifier = verifier
        self._counters = counters
        self._max_choices = settings.max_choices
        self._planner = Planner(tokenizer=tokenizer, timeout_s=settings.control_timeout_s)
        self._source = FactSource(
            tokenizer=tokenizer,
            verifier=verifier,
            served_model=settings.served_model,
            timeout_s=settings.control_timeout_s,
        )
        self._admission = Admission(
            limit=settings.max_in_flight, retry_after_s=settings.retry_after_s, counters=counters
        )

    async def facts(self) -> Facts:
        return await self._source.facts()

    async def chat(self, exchange: Exchange, body: bytes, /) -> None:
        started = time.perf_counter()
        request = read_chat(body)
        facts = await self._checked(request, choices=request.choices)
        with self._admission.admit(request.choices):
            plan = await self._planner.chat(request, facts=facts)
            await self._answer(request, plan=plan, dialect=ChatDialect(), exchange=exchange, started=started)

    async def completion(self, exchange: Exchange, body: bytes, /) -> None:
        started = time.perf_counter()
        request = read_completion(body)
        facts = await self._checked(request, choices=request.choices)
        with self._admission.admit(request.choices):
            plan = await self._planner.completion(request, facts=facts)
            await self._answer(request, plan=plan, dialect=CompletionDialect(), exchange=exchange, started=started)

    async def _checked(self, request: GenerationBody, /, *, choices: int) -> Facts:
        if choices > self._max_choices:
            raise FieldError(
                f"n times the number of prompts should be at most {self._max_choices} here, not {choices}.",
                "n" if (request.n or 1) > 1 else "prompt",
            )
        facts = await self._source.facts()
        if request.model != facts.model:
            raise _unknown_model(request.model, facts=facts)
        return facts

    async def _answer(
        self, request: GenerationBody, /, *, plan: Plan, dialect: Dialect, exchange: Exchange, started: float
    ) -> None:
        self._counters.prompt_tokens(plan.prompt_tokens)
        answer = Answer(plan=plan, dialect=dialect, exchange=exchange, counters=self._counters, started=started)
        async with Choices(plan=plan, verifier=self._verifier) as choices:
            if request.stream:
                await answer.streamed(choices.events(), with_usage=request.wants_usage)
            else:
                await answer.in_one_piece(choices.events())


class _Service:
    """The routes that say what is served and how it fares."""

    def __init__(
        self,
        *,
        generation: _Generation,
        verifier: VerifierPort,
        tokenizer: TokenizerPort,
        drafter: DrafterPort | None,
        siblings: Pages | None,
        counters: Counters,
        timeout_s: float,
    ) -> None:
        self._generation = generation
        self._verifier = verifier
        self._tokenizer = tokenizer
        self._drafter = drafter
        self._siblings = siblings
        self._counters = counters
        self._timeout_s = timeout_s
        self._gatherer = Gatherer(counters=counters, timeout_s=timeout_s)

    async def models(self, exchange: Exchange, _: bytes, /) -> None:
        facts = await self._generation.facts()
        await exchange.respond_json({"object": "list", "data": [_model(facts)]})

    async def model(self, exchange: Exchange, _: bytes, /) -> None:
        facts = await self._generation.facts()
        if exchange.path_parameter("model") != facts.model:
            raise _unknown_model(exchange.path_parameter("model"), facts=facts)
        await exchange.respond_json(_model(facts))

    async def health(self, exchange: Exchange, _: bytes, /) -> None:
        """Healthy means that a request sent now would be encoded and generated; the drafter is not needed for that."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.gather(self._verifier.card(), self._tokenizer.encode_text("health"))
        except Exception as error:
            raise Unavailable("The verifier or the tokenizer does not answer; try again in a moment.") from error
        await exchange.respond_json({"status": "ok"})

    async def metrics(self, exchange: Exchange, _: bytes, /) -> None:
        page = await self._gatherer.page(self._sources())
        await exchange.respond(page, media_type=_EXPOSITION)

    def _sources(self) -> Mapping[str, Awaitable[list[str]]]:
        sources = {
            "tokenizer": self._tokenizer.metrics(),
            "verifier": self._verifier.metrics(),
            "ingress": self._own_pages() if self._siblings is None else self._siblings(),
        }
        return sources if self._drafter is None else {**sources, "drafter": self._drafter.metrics()}

    async def _own_pages(self) -> list[str]:
        return [self._counters.exposition()]


def _model(facts: Facts, /) -> Json:
    """`max_model_len` is how vLLM's clients learn the context."""
    return {
        "id": facts.model,
        "object": "model",
        "created": facts.card.created,
        "owned_by": "outrider",
        "max_model_len": facts.card.context,
    }


def _unknown_model(model: str, /, *, facts: Facts) -> UnknownModel:
    return UnknownModel(f"The model '{model[:200]}' is not served here; '{facts.model}' is.")


async def _no_route(request: Request, error: Exception, /) -> Response:
    """Starlette's own refusals, in OpenAI's shape."""
    allow = (error.headers or {}).get("Allow") if isinstance(error, HTTPException) else None
    path = request.url.path[:200]
    if allow is not None:
        return _shaped(MethodNotAllowed(f"{request.method} is not allowed on {path}; use {allow}.", allow))
    return _shaped(NoSuchRoute(f"Nothing is served under {path}; the API is under /v1."))


async def _unforeseen(_: Request, error: Exception, /) -> Response:
    return _shaped(error)


def _shaped(error: Exception, /) -> Response:
    shape = shape_of(error)
    return Response(shape.body, status_code=shape.status, headers=dict(shape.headers), media_type="application/json")
