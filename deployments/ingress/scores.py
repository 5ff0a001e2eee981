"""Log-probabilities as OpenAI's two routes word them. Knows tokens and their bytes, not how either came about."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deployments.ingress.decoding import token_bytes
from deployments.messages.generation import TokenLogprob, TokenTable

_LEAST = -9999.0
"""What JSON gets in place of minus infinity; vLLM's value."""


@dataclass(frozen=True, kw_only=True)
class ScoredToken:
    """One token of a reply.

    Attributes:
        offset: characters of the reply that were complete before it.
    """

    token_id: int
    offset: int
    score: TokenLogprob


def chat_logprobs(tokens: Sequence[ScoredToken], /, *, table: TokenTable) -> dict[str, Any]:
    """The `logprobs` of a chat choice. A token that is part of a character has only its `bytes` to tell it by."""
    content = [
        {
            **_entry(token.token_id, logprob=token.score.logprob, table=table),
            "top_logprobs": [_entry(other, logprob=logprob, table=table) for other, logprob in token.score.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[ScoredToken], /, *, table: TokenTable) -> dict[str, Any]:
    """The `logprobs` of a completion's choice. The token itself is always among its alternatives."""
    return {
        "tokens": [_text(token.token_id, table=table) for token in tokens],
        "token_logprobs": [max(token.score.logprob, _LEAST) for token in tokens],
        "top_logprobs": [_alternatives(token, table=table) for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }


def _alternatives(token: ScoredToken, /, *, table: TokenTable) -> dict[str, float]:
    """By text; of several tokens that read the same the likeliest counts, unless the reply's own is one of them."""
    alternatives = {_text(token.token_id, table=table): max(token.score.logprob, _LEAST)}
    for other, logprob in token.score.top:
        alternatives.setdefault(_text(other, table=table), max(logprob, _LEAST))
    return alternatives


def _entry(token_id: int, /, *, logprob: float, table: TokenTable) -> dict[str, Any]:
    data = token_bytes(token_id, table=table)
    return {"token": data.decode(errors="replace"), "logprob": max(logprob, _LEAST), "bytes": list(data)}


def _text(token_id: int, /, *, table: TokenTable) -> str:
    return token_bytes(token_id, table=table).decode(errors="replace")
