"""What an operator may set about the HTTP door. It reads no file and no environment: the composition root does."""

from dataclasses import dataclass, field

from deployments.messages.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class IngressSettings:
    """The ingress deployment's own section of the configuration.

    Attributes:
        served_model: the id clients must name; `None` takes the verifier's own.
        api_key_digests: `key_digest` of each accepted bearer token; empty leaves the API open.
        admin_key_digests: the same for `/admin`; empty closes it.
        max_in_flight: choices (replies, not requests) that may be generated at once through one ingress replica.
        max_choices: the most choices one request may ask for: `n` times its prompts.
        max_body_bytes: a longer body is refused with 413.
        retry_after_s: what a refused client is told to wait.
        request_timeout_s: the longest a request may take, reply included; `None` sets no limit.
        control_timeout_s: the longest wait for the tokenizer, or for the verifier's card.
        gather_timeout_s: how long `/metrics` and `/health` wait for another deployment.
    """

    served_model: str | None = None
    api_key_digests: tuple[str, ...] = field(default=(), repr=False)
    admin_key_digests: tuple[str, ...] = field(default=(), repr=False)
    max_in_flight: int = 256
    max_choices: int = 16
    max_body_bytes: int = 4 * 1024 * 1024
    retry_after_s: int = 1
    request_timeout_s: float | None = None
    control_timeout_s: float = 30.0
    gather_timeout_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("max_in_flight", "max_choices", "max_body_bytes", "retry_after_s"):
            if getattr(self, name) < 1:
                raise ConfigError(f"ingress {name} must be at least 1, not {getattr(self, name)}")
        for name in ("request_timeout_s", "control_timeout_s", "gather_timeout_s"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ConfigError(f"ingress {name} must be above 0 seconds, not {seconds}")
        if self.max_choices > self.max_in_flight:
            raise ConfigError(
                f"ingress max_choices ({self.max_choices}) must not exceed max_in_flight ({self.max_in_flight}), "
                "or the largest requests could never be admitted"
            )
