"""What the ingress must know of the model before it can answer, fetched once: the card and the token table."""

import asyncio
from dataclasses import dataclass

from deployments.messages.errors import Unavailable
from deployments.messages.generation import ModelCard, TokenTable
from deployments.messages.ports import TokenizerPort, VerifierPort


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The model that is served.

    Attributes:
        model: the id clients name.
    """

    model: str
    card: ModelCard
    table: TokenTable

    @property
    def vocabulary(self) -> int:
        return len(self.table.ends)


class FactSource:
    """Fetches the facts when first asked, so that the ingress starts before the verifier has compiled."""

    def __init__(
        self, *, tokenizer: TokenizerPort, verifier: VerifierPort, served_model: str | None, timeout_s: float
    ) -> None:
        self._tokenizer = tokenizer
        self._verifier = verifier
        self._served_model = served_model
        self._timeout_s = timeout_s
        self._facts: Facts | None = None
        self._lock = asyncio.Lock()

    async def facts(self) -> Facts:
        """The same facts each time; they change only with a new deployment of the application.

        Raises:
            Unavailable: verifier or tokenizer did not answer in time.
        """
        if self._facts is None:
            try:
                # The wait for others who fetch counts too.
                async with asyncio.timeout(self._timeout_s), self._lock:
                    self._facts = self._facts or await self._fetch()
            except TimeoutError:
                raise Unavailable("The model is not loaded yet; try again in a moment.") from None
        return self._facts

    async def _fetch(self) -> Facts:
        card, table = await asyncio.gather(self._verifier.card(), self._tokenizer.table())
        return Facts(model=self._served_model or card.model, card=card, table=table)
