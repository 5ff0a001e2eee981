"""What a verifier is told by whoever composes the application."""

from dataclasses import dataclass, field

from deployments.verifier.links import LinkSettings
from deployments.verifier.live_gain import GainSpan
from deployments.verifier.sizing import ModelSettings


@dataclass(frozen=True, kw_only=True)
class VerifierSettings:
    """The verifier's own section of the configuration.

    Attributes:
        served_model: the id clients name; `None` takes the name in the file.
        draft_deadline_s: the most a window waits for drafts.
        max_queue: requests that may wait for a slot.
        stream_interval_s: how long a chunk may be held back, to travel with the next; it leaves after a window.
        gain_span: the windows over which it is judged whether drafts gain what was recorded.
    """

    model: ModelSettings
    served_model: str | None = None
    draft_deadline_s: float = 0.005
    max_queue: int = 256
    stream_interval_s: float = 0.0
    gain_span: GainSpan = field(default_factory=GainSpan)

    def links(self, *, verifier: str, vocabulary: int) -> LinkSettings:
        """What the links to drafters are told.

        Args:
            verifier: the name drafters know this replica by.
        """
        return LinkSettings(
            verifier=verifier,
            vocab_size=vocabulary,
            k_max=self.model.draft_k,
            deadline_s=self.draft_deadline_s,
        )
