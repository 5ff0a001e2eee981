"""What a window drew for one request: its tokens, and the log-probabilities if it asked for them. Host only."""

from dataclasses import dataclass

from deployments.messages.generation import GenerateRequest, TokenLogprob
from deployments.verifier.programs import WindowResult


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One request's part of a window.

    Attributes:
        tokens: the drafts that were kept and the draw after the last of them.
        logprobs: one for each of `tokens`; `None` where the request did not ask.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None

    @property
    def kept(self) -> int:
        return len(self.tokens) - 1


def drawn_for(result: WindowResult, /, *, request: GenerateRequest, rows: range) -> Drawn:
    """What came of `rows`, of which only the first ones count."""
    end = rows.start + int(result.live[rows.start : rows.stop].sum())
    tokens = tuple(result.tokens[rows.start : end].tolist())
    return Drawn(tokens=tokens, logprobs=_logprobs(result, most=request.logprobs, rows=range(rows.start, end)))


def _logprobs(result: WindowResult, *, most: int | None, rows: range) -> tuple[TokenLogprob, ...] | None:
    if most is None or result.logprobs is None:
        return None
    own, tokens, top = (part[rows.start : rows.stop].tolist() for part in result.logprobs)
    return tuple(
        TokenLogprob(logprob=logprob, top=tuple(zip(ids[:most], values[:most], strict=True)))
        for logprob, ids, values in zip(own, tokens, top, strict=True)
    )
