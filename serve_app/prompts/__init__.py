"""The prompts that proofs and measurements run over, as they come with the package. Knows files, not models."""

from dataclasses import dataclass
from importlib.resources import files

import msgspec

from deployments.messages.errors import ConfigError

PROMPT_SETS = ("mt_bench", "copy", "quick")

_QUICK_STEP = 4


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What a user says in the first turn of a conversation.

    Attributes:
        name: unique over all sets, such as `mt_bench-81`.
        category: the sort of task, in the words of the set.
    """

    name: str
    category: str
    text: str


class _Line(msgspec.Struct, frozen=True):
    question_id: int
    category: str
    turns: tuple[str, ...]


def load_prompts(name: str, /) -> tuple[Prompt, ...]:
    """The prompts of a set, always in the same order.

    Args:
        name: `mt_bench`, 80 questions of eight sorts; `copy`, 20 texts to repeat; `quick`, every fourth question of
            the former and all of the latter.

    Raises:
        ConfigError: there is no such set.
    """
    match name:
        case "mt_bench" | "copy":
            return _read(name)
        case "quick":
            return (*_read("mt_bench")[::_QUICK_STEP], *_read("copy"))
        case _:
            raise ConfigError(f"there are no prompts named '{name}'; choose one of {', '.join(PROMPT_SETS)}")


def _read(name: str) -> tuple[Prompt, ...]:
    lines = (files(__name__) / f"{name}.jsonl").read_bytes().splitlines()
    rows = [msgspec.json.decode(line, type=_Line) for line in lines]
    return tuple(Prompt(name=f"{name}-{row.question_id}", category=row.category, text=row.turns[0]) for row in rows)
