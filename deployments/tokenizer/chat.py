"""Conversations to token ids: guard, render, encode. Knows the order of these steps and nothing of their insides."""

from deployments.messages.errors import InvalidRequest
from deployments.messages.generation import ChatTurn
from deployments.tokenizer.encoding import PromptEncoder, require_unicode
from deployments.tokenizer.guarding import ControlGuard
from deployments.tokenizer.template import ChatTemplate


class ChatEncoder:
    """Encodes conversations for one model. Control tokens in the result come from its template alone."""

    def __init__(self, *, template: ChatTemplate | None, guard: ControlGuard, encoder: PromptEncoder) -> None:
        self._template = template
        self._guard = guard
        self._encoder = encoder

    def encode(self, turns: tuple[ChatTurn, ...], /) -> tuple[int, ...]:
        """Raises `InvalidRequest` for what the template refuses, and for every conversation when there is none."""
        if self._template is None:
            raise InvalidRequest(
                "this model has no chat template; send a prompt to /v1/completions instead", "messages"
            )
        for index, turn in enumerate(turns):
            require_unicode(turn.role, param=f"messages[{index}].role")
            require_unicode(turn.content, param=f"messages[{index}].content")
        guarded = self._guard.guard(turns)
        return self._encoder.encode(self._template.render(guarded.turns), mark=guarded.mark)
