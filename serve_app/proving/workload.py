"""What is asked in a proof: prompts as token ids, greedy and sampled, with seeds that never change."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from deployments.messages.errors import ConfigError
from deployments.messages.generation import (
    ChatTurn,
    EncodedPrompt,
    GenerateRequest,
    SamplingSettings,
    SpeculationSettings,
    TokenTable,
)
from serve_app.prompts import Prompt


class Mode(StrEnum):
    """How tokens are drawn."""

    GREEDY = "greedy"
    SAMPLED = "sampled"


@dataclass(frozen=True, kw_only=True)
class Question:
    """One prompt, ready to be asked with any speculation.

    Attributes:
        request: its `request_id` is the question's name.
    """

    mode: Mode
    request: GenerateRequest

    @property
    def name(self) -> str:
        return self.request.request_id


class Encoder(Protocol):
    """What is asked of a tokenizer, in this process or in a deployment."""

    async def encode_chat(self, turns: tuple[ChatTurn, ...], /) -> EncodedPrompt: ...

    async def encode_text(self, text: str, /) -> EncodedPrompt: ...

    async def table(self) -> TokenTable: ...


SPECULATING = SpeculationSettings()
PLAIN = SpeculationSettings(enabled=False)


async def ask_all(
    prompts: Sequence[Prompt], /, *, tokenizer: Encoder, tokens: int, context: int
) -> tuple[Question, ...]:
    """Every prompt in every mode; prompts that do not fit the context with their reply are left out.

    Raises:
        ConfigError: none fits.
    """
    table = await tokenizer.table()
    questions: list[Question] = []
    for seed, prompt in enumerate(prompts):
        turns = (ChatTurn(role="user", content=prompt.text),)
        encoded = await (
            tokenizer.encode_chat(turns) if table.has_chat_template else tokenizer.encode_text(prompt.text)
        )
        if len(encoded.token_ids) + tokens > context:
            continue
        questions += [
            Question(
                mode=mode,
                request=GenerateRequest(
                    request_id=f"{prompt.name} {mode}",
                    prompt_ids=encoded.token_ids,
                    max_tokens=tokens,
                    sampling=_sampling(mode, seed=seed),
                    end_ids=table.end_ids,
                ),
            )
            for mode in Mode
        ]
    if not questions:
        raise ConfigError(
            f"none of the {len(prompts)} prompts fits a context of {context} with {tokens} tokens of reply; raise --ctx"
        )
    return tuple(questions)


def every_nth(questions: Sequence[Question], /, *, most: int) -> tuple[Question, ...]:
    """About `most` of them, evenly spread, for what takes long."""
    return tuple(questions[:: max(1, -(-len(questions) // most))])


def of_mode(questions: Sequence[Question], /, *, mode: Mode) -> tuple[Question, ...]:
    """Those that are drawn this way."""
    return tuple(question for question in questions if question.mode is mode)


def _sampling(mode: Mode, *, seed: int) -> SamplingSettings:
    match mode:
        case Mode.GREEDY:
            return SamplingSettings(temperature=0.0)
        case Mode.SAMPLED:
            return SamplingSettings(temperature=0.8, top_p=0.95, seed=seed)
