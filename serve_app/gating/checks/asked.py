"""What the checks ask: built-in prompts, chats and copies in turn, or those of a file. Knows files and a tokenizer."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

import msgspec

from deployments.messages.errors import ConfigError
from deployments.messages.generation import FinishReason
from deployments.tokenizer.deployment import TokenizerServer
from serve_app.metrics import ReplicaMetrics
from serve_app.model_fetch import resolve_model
from serve_app.prompts import PROMPT_SETS, Prompt, load_prompts
from serve_app.proving.comparison import Replies, Reply
from serve_app.proving.workload import Mode, Question, ask_all

MIXTURE = "mixture"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Attributes: `questions` come in pairs, greedy and sampled; `description` says what they are, for the record."""

    questions: tuple[Question, ...]
    description: str


def read_questions(prompts: str, /, *, model: str, tokens: int, context: int) -> Asked:
    """Questions whose replies have at most `tokens` tokens.

    Args:
        prompts: `mixture`, a set of `serve_app.prompts`, or a text file with one prompt per line.
        model: whose vocabulary and chat template to use.

    Raises:
        ConfigError: there are no such prompts, or none fits the context.
    """
    chosen, described = _prompts(prompts)
    tokenizer = TokenizerServer(model=model, locate=_locate, metrics=ReplicaMetrics())
    questions = asyncio.run(ask_all(chosen, tokenizer=tokenizer, tokens=tokens, context=context))
    return Asked(questions=questions, description=f"{described}, replies of at most {tokens} tokens")


def check_prompts(prompts: str, /) -> None:
    """Raises `ConfigError` where there are no such prompts."""
    _prompts(prompts)


def for_exactness(questions: Sequence[Question], /, *, prompts: int) -> tuple[Question, ...]:
    """Both modes of so many prompts."""
    return tuple(questions[: prompts * len(Mode)])


def for_rungs(questions: Sequence[Question], /, *, most: int, tokens: int) -> tuple[Question, ...]:
    """One of each prompt, greedy and sampled in turn, with shorter replies."""
    pairs = [questions[place : place + len(Mode)] for place in range(0, len(questions), len(Mode))][:most]
    chosen = [pair[place % len(pair)] for place, pair in enumerate(pairs)]
    return tuple(_shorter(question, tokens=tokens) for question in chosen)


def shortened(replies: Replies, /, *, questions: Sequence[Question]) -> dict[str, Reply]:
    """The same replies as they are when these questions end them sooner."""
    return {question.name: _cut(replies[question.name], tokens=question.request.max_tokens) for question in questions}


def _shorter(question: Question, *, tokens: int) -> Question:
    request = msgspec.structs.replace(question.request, max_tokens=min(tokens, question.request.max_tokens))
    return Question(mode=question.mode, request=request)


def _cut(reply: Reply, *, tokens: int) -> Reply:
    if len(reply.token_ids) < tokens:
        return reply
    # With exactly as many tokens an end token after them is never drawn.
    return Reply(token_ids=reply.token_ids[:tokens], finish_reason=FinishReason.LENGTH, statistics=reply.statistics)


def _prompts(name: str) -> tuple[tuple[Prompt, ...], str]:
    if name == MIXTURE:
        pairs = zip_longest(_mixed(load_prompts("mt_bench")), load_prompts("copy"))
        return tuple(prompt for prompt in chain.from_iterable(pairs) if prompt is not None), "chat and copy in turn"
    if name in PROMPT_SETS:
        return tuple(_mixed(load_prompts(name))), f"prompts {name}"
    path = Path(name).expanduser()
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--prompts {name} is none of {MIXTURE}, {', '.join(PROMPT_SETS)}, and as a file it cannot be read: {error}"
        ) from error
    found = [
        Prompt(name=f"{path.stem}-{number}", category="", text=line) for number, line in enumerate(lines, 1) if line
    ]
    if not found:
        raise ConfigError(f"{path} holds no prompts; put one on each line")
    return tuple(found), f"{len(found)} prompts of {path.name}"


def _mixed(prompts: Sequence[Prompt]) -> list[Prompt]:
    """One of each category in turn, so that the first few are already a mixture."""
    places: dict[str, int] = {}
    ordered = []
    for number, prompt in enumerate(prompts):
        place = places[prompt.category] = places.get(prompt.category, -1) + 1
        ordered.append((place, number, prompt))
    return [prompt for _, _, prompt in sorted(ordered, key=lambda item: item[:2])]


def _locate(model: str, /) -> Path:
    return resolve_model(model)
