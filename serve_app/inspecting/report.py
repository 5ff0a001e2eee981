"""All that `outrider inspect` says, as data and as lines for a terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from deployments.lm.cache.layout import Layout
from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.checkpoint.source import Checkpoint
from deployments.lm.models.load import read_config
from deployments.messages.errors import CheckpointError
from deployments.verifier.memory import free_host_memory
from serve_app.inspecting.drafters import Drafter, drafters_for
from serve_app.inspecting.header import Header, read_header
from serve_app.inspecting.memory import Fit, Memory, fits, memory_of
from serve_app.inspecting.tokens import TokenizerFacts, read_tokenizer

_GIB, _MIB, _KIB = 2**30, 2**20, 2**10


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What is known of a checkpoint without reading a weight.

    Attributes:
        refusal: why this version does not run it; `None` if it does.
        tokenizer: which there is; whether this version knows it is found out when it is built.
    """

    name: str
    format: str
    architecture: str
    refusal: str | None
    header: Header
    tokenizer: TokenizerFacts
    drafters: tuple[Drafter, ...]
    memory: tuple[Memory, ...]
    fits: tuple[Fit, ...]

    def to_json(self) -> bytes:
        """All of it, indented."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)

    def lines(self) -> list[str]:
        """For a person."""
        return list(_lines(self))


def inspect_checkpoint(path: Path, /) -> Inspection:
    """Looks at the headers of a checkpoint's files.

    Raises:
        CheckpointError: there is none, or its files are damaged.
    """
    checkpoint = open_checkpoint(path)
    header, tokenizer = read_header(checkpoint), read_tokenizer(checkpoint)
    layout, refusal = _layout(checkpoint)
    memory = memory_of(checkpoint, layout=layout)
    return Inspection(
        name=checkpoint.name,
        format=checkpoint.format.value,
        architecture=checkpoint.architecture,
        refusal=refusal,
        header=header,
        tokenizer=tokenizer,
        drafters=drafters_for(header, tokenizer=tokenizer, refusal=refusal),
        memory=memory,
        fits=fits(memory, free_here=free_host_memory()),
    )


def _layout(checkpoint: Checkpoint) -> tuple[Layout | None, str | None]:
    """What the network's layers keep; or why the network is not one that runs here."""
    try:
        return read_config(checkpoint).layout, None
    except CheckpointError as error:
        return None, str(error)


def _lines(found: Inspection) -> Iterator[str]:
    header = found.header
    yield f"{found.name}: {found.format}, architecture {found.architecture}, {_bytes(header.file_bytes)}"
    yield f"runs here     {'yes' if found.refusal is None else f'no: {found.refusal}'}"
    for name, values in header.sizes.items():
        yield f"{name.replace('_', ' '):<21} {'/'.join(map(str, values))}"
    beside = f", and {_count(header.other_parameters)} that are not loaded" if header.other_parameters else ""
    yield f"{'parameters':<21} {_count(header.parameters)} ({header.parameters}){beside}"
    yield f"{'tokenizer':<21} {_tokenizer(found.tokenizer)}"
    yield ""
    yield from _table(
        ["stored as", "tensors", "parameters", "bytes"],
        [[kind.name, str(kind.tensors), _count(kind.parameters), _bytes(kind.bytes)] for kind in header.types],
    )
    yield ""
    yield from _table(
        ["drafter", "could apply", "runs here", "why"],
        [[one.kind, _yes(one.could_apply), _yes(one.runs), one.reason] for one in found.drafters],
    )
    yield ""
    yield from _table(
        ["precision", "weights", "cache per 1k tokens", "state per request"],
        [
            [one.precision, _bytes(one.weights), _bytes(one.cache_per_1k), _bytes(one.state_per_request)]
            for one in found.memory
        ],
    )
    yield ""
    yield "thousands of tokens of cache beside the weights, by device; - where the weights do not fit"
    yield from _table(
        ["device", "memory", *(one.precision for one in found.memory)],
        [
            [fit.device, _bytes(fit.bytes), *(_room(tokens, found=found) for tokens in fit.tokens.values())]
            for fit in found.fits
        ],
    )


def _tokenizer(found: TokenizerFacts) -> str:
    if found.kind is None:
        return f"none, {_template(found)}"
    size = "" if found.size is None else f", {found.size} tokens"
    return f"{found.kind} ({found.source}){size}, {_template(found)}"


def _template(found: TokenizerFacts) -> str:
    return "with a chat template" if found.has_template else "without a chat template"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _room(tokens: int | None, *, found: Inspection) -> str:
    if tokens is None:
        return "-"
    return "fits" if found.refusal else str(tokens)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _count(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


def _bytes(count: int | None) -> str:
    if count is None:
        return "unknown"
    for unit, size in (("GiB", _GIB), ("MiB", _MIB), ("KiB", _KIB)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
