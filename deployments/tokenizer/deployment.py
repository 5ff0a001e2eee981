"""The tokenizer deployment: wiring. Answers `TokenizerPort`; every encoding runs in a thread of its own."""

import asyncio
import time
from collections.abc import Callable

from deployments.messages.errors import InvalidRequest
from deployments.messages.generation import ChatTurn, EncodedPrompt, TokenTable
from deployments.messages.metrics import MetricsFactory
from deployments.messages.ports import Locate
from deployments.tokenizer.chat import ChatEncoder
from deployments.tokenizer.counters import REQUESTS, SECONDS, SPECS, TOKENS
from deployments.tokenizer.encoding import PromptEncoder, require_unicode
from deployments.tokenizer.guarding import ControlGuard
from deployments.tokenizer.model_text import read_model_text
from deployments.tokenizer.table import token_table


class TokenizerServer:
    """One replica.

    Args:
        model: whose vocabulary and chat template to use, as `locate` understands it.
        metrics: makes this replica's `Metrics`.

    Raises:
        CheckpointError: the files are missing or broken; `UnknownTokenizer` and `UnknownTemplate` say what it is that
            this version does not know.
    """

    def __init__(self, *, model: str, locate: Locate, metrics: MetricsFactory) -> None:
        text = read_model_text(locate(model))
        self._encoder = PromptEncoder(text.vocabulary)
        guard = ControlGuard(text.vocabulary.control_texts)
        self._chat = ChatEncoder(template=text.template, guard=guard, encoder=self._encoder)
        self._table = token_table(text.vocabulary, has_chat_template=text.template is not None)
        self._metrics = metrics(SPECS)

    async def encode_chat(self, turns: tuple[ChatTurn, ...], /) -> EncodedPrompt:
        """Raises `InvalidRequest` for a conversation the template refuses."""
        return await self._counted(lambda: self._chat.encode(turns), kind="chat")

    async def encode_text(self, text: str, /) -> EncodedPrompt:
        """The literal text of a control token becomes that token, as in llama.cpp.

        Raises:
            InvalidRequest: the text is not valid Unicode.
        """
        return await self._counted(lambda: self._encode_text(text), kind="text")

    async def table(self) -> TokenTable:
        return self._table

    async def metrics(self) -> str:
        """This replica's exposition."""
        return self._metrics.exposition()

    async def check_health(self) -> None:
        """Called by Serve; an exception says that this replica is to be replaced."""
        await asyncio.to_thread(self._encoder.encode, "healthy")

    def _encode_text(self, text: str, /) -> tuple[int, ...]:
        require_unicode(text, param="prompt")
        return self._encoder.encode(text)

    async def _counted(self, encode: Callable[[], tuple[int, ...]], /, *, kind: str) -> EncodedPrompt:
        began = time.perf_counter()
        outcome = "failed"
        try:
            token_ids = await asyncio.to_thread(encode)
            outcome = "encoded"
        except InvalidRequest:
            outcome = "refused"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._metrics.add(REQUESTS, labels=(kind, outcome))
        self._metrics.observe(SECONDS, value=time.perf_counter() - began, labels=(kind,))
        self._metrics.add(TOKENS, amount=len(token_ids), labels=(kind,))
        return EncodedPrompt(token_ids=token_ids)
