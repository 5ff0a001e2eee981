"""The tokens of one request as the sampler's penalties want them: each once, with what is to be known of it.

Follows from request and accepted tokens alone, and is built when it is first asked for. Host only.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from deployments.lm.sampling.blocks import NO_TOKEN
from deployments.lm.sampling.shaping import BLOCK_FIELDS, COUNT_SHIFT, ENTRIES, IN_PROMPT, IS_END
from deployments.messages.generation import MOST_BIASES, GenerateRequest

MOST_ENDS = 256
"""The most end tokens one request may name."""

_FIELDS = 3
_IDS, _MARKS, _BIASES = range(_FIELDS)


def most_blocks(*, context: int, longest: int) -> int:
    """The most blocks one request can need."""
    return -(-(context + longest + MOST_BIASES + MOST_ENDS) // ENTRIES)


def is_shaped(request: GenerateRequest, /) -> bool:
    """Whether the request's logits are changed before it draws, now or later."""
    sampling = request.sampling
    return sampling.penalises or bool(sampling.logit_bias) or request.min_tokens > 0


class History:
    """The entries of one request, in the order in which they were first needed."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._table = np.zeros((0, _FIELDS), np.int32)
        self._read = 0

    def blocks(
        self, request: GenerateRequest, /, *, tokens: Sequence[int], drafts: Sequence[int]
    ) -> Int32[np.ndarray, "blocks fields"]:
        """As in `shaping.Shaping.blocks`, but for the first two fields.

        Args:
            tokens: the accepted sequence; it may only grow from one call to the next.
            drafts: they have entries too, since rows after them see them.
        """
        if not self._read:
            self._begin(request)
        strangers: list[int] = []
        if request.sampling.penalises:
            for token in tokens[self._read :]:
                self._row(token)[_MARKS] += 1 << COUNT_SHIFT
            strangers = [token for token in dict.fromkeys(drafts) if token not in self._places]
        self._read = len(tokens)
        known, count = len(self._places), len(self._places) + len(strangers)
        filled = -(-count // ENTRIES) * ENTRIES
        table = np.zeros((filled, _FIELDS), np.int32)
        table[:, _IDS] = NO_TOKEN
        table[:known] = self._table[:known]
        table[known:count, _IDS] = strangers
        blocks = np.zeros((filled // ENTRIES, BLOCK_FIELDS), np.int32)
        blocks[:, 2:] = table.reshape(-1, ENTRIES, _FIELDS).transpose(0, 2, 1).reshape(-1, _FIELDS * ENTRIES)
        return blocks

    def _begin(self, request: GenerateRequest) -> None:
        for token, bias in request.sampling.logit_bias:
            self._row(token)[_BIASES] = np.float32(bias).view(np.int32)
        if request.min_tokens:
            for token in dict.fromkeys(request.end_ids):
                self._row(token)[_MARKS] |= IS_END
        if request.sampling.repetition_penalty != 1.0:
            for token in dict.fromkeys(request.prompt_ids):
                self._row(token)[_MARKS] |= IN_PROMPT
        self._read = len(request.prompt_ids)

    def _row(self, token: int) -> Int32[np.ndarray, " fields"]:
        """The token's own entry; a new one where there is none yet."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._table):
            self._table = np.concatenate([self._table, np.zeros((place + ENTRIES, _FIELDS), np.int32)])
        self._table[place, _IDS] = token
        row: Int32[np.ndarray, " fields"] = self._table[place]
        return row
