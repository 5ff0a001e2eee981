"""What a verifier is told by whoever composes the application."""

from dataclasses import dataclass

from deployments.verifier.loading import ModelSettings


@dataclass(frozen=True, kw_only=True)
class VerifierSettings:
    """The verifier's own section of the configuration.

    Attributes:
        served_model: the id clients name; `None` takes the name in the file.
        draft_deadline_s: the most a window waits for drafts.
        max_queue: requests that may wait for a slot.
        stream_interval_s: how long a chunk may be held back, to travel with the next; it leaves after a window.
    """

    model: ModelSettings
    served_model: str | None = None
    draft_deadline_s: float = 0.005
    max_queue: int = 256
    stream_interval_s: float = 0.0
