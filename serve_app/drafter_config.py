"""The configuration's section on drafters: one model per kind."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from deployments.lm.drafting.build import StrategySettings
from deployments.lm.drafting.ngram import NgramSettings
from deployments.lm.drafting.noise import NoiseSettings
from deployments.lm.drafting.oracle import OracleSettings
from serve_app.sections import Placement, Section


class DrafterPlacement(Placement):
    """What drafters of every kind share.

    Attributes:
        listen_host: the address drafters listen on; empty takes the node's own.
        reason: why this drafter runs, for the start-up line.
    """

    listen_host: str = ""
    reason: str = ""


class OffConfig(Section):
    """No drafter: every request is decoded plainly."""

    kind: Literal["off"]
    reason: str = "drafter.kind is off"


class AutoConfig(DrafterPlacement):
    """What has passed the gates on this chip, in the order of the documents; nothing where nothing has."""

    kind: Literal["auto"] = "auto"
    reason: str = "drafter.kind is auto"

    def strategy(self, *, draft_k: int) -> StrategySettings:
        """Of the one kind there is yet."""
        return NgramSettings(max_k=draft_k)


class NgramConfig(DrafterPlacement):
    """Copies from the request's own tokens: what followed the last occurrence of its last `max_n..min_n` tokens.

    Attributes:
        placement: `chip` drafts on the verifier's device, several windows in one call; `remote` in replicas of its own.
    """

    kind: Literal["ngram"] = "ngram"
    placement: Literal["remote", "chip"] = "remote"
    max_n: PositiveInt = 3
    min_n: PositiveInt = 2
    reason: str = "drafter.kind is ngram, picked by hand"

    def strategy(self, *, draft_k: int) -> NgramSettings:
        return NgramSettings(max_n=self.max_n, min_n=self.min_n, max_k=draft_k)


class RandomConfig(DrafterPlacement):
    """Random tokens; proves that wrong drafts change no reply."""

    kind: Literal["random"]
    vocabulary: PositiveInt
    seed: int = 0
    reason: str = "drafter.kind is random, for a proof"

    def strategy(self, *, draft_k: int) -> StrategySettings:
        return NoiseSettings(vocab_size=self.vocabulary, seed=self.seed, max_k=draft_k)


class OracleConfig(DrafterPlacement):
    """Known continuations from a file; proves full acceptance."""

    kind: Literal["oracle"]
    path: str
    reason: str = "drafter.kind is oracle, for a proof"

    def strategy(self, *, draft_k: int) -> StrategySettings:
        return OracleSettings(path=self.path, max_k=draft_k)


type DrafterConfig = Annotated[
    AutoConfig | OffConfig | NgramConfig | RandomConfig | OracleConfig, Field(discriminator="kind")
]
