"""The section of the configuration about gates: where they are kept, and what follows from them."""

import os
from pathlib import Path
from typing import Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from deployments.messages.errors import ConfigError
from deployments.verifier.live_gain import GainSpan
from serve_app.gating.lost_gain import OnLostGain
from serve_app.gating.opening import StoreSettings, open_store
from serve_app.gating.policy import LEAST_GAIN, Order
from serve_app.gating.redis_link import TlsFiles
from serve_app.sections import Section


class GatesConfig(Section):
    """The gates.

    Attributes:
        store: `file:PATH`, `redis://host:port/db` or `rediss://host:port/db`; empty asks no gates.
        password_env: the name of an environment variable with the password of a Redis.
        password_file: a file with it, on the machines of the verifiers.
        ca_file, cert_file, key_file: certificates for `rediss://`, on the machines of the verifiers.
        auto_order: how `auto` chooses among kinds that passed.
        least_gain: the smallest measured ratio that counts as faster.
        on_lost_gain: what a verifier does when it finds the gain on record gone for good: `warn`, or `stop` drafting.
        lost_gain_windows, lost_gain_seconds: over how many windows with drafts, and how long, it looks each time.
    """

    store: str = f"file:{Path.home() / '.cache' / 'outrider' / 'gates.yaml'}"
    password_env: str = ""
    password_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    auto_order: Order = Order.DOCUMENTS
    least_gain: float = Field(default=LEAST_GAIN, ge=1.0)
    on_lost_gain: OnLostGain = OnLostGain.WARN
    lost_gain_windows: PositiveInt = GainSpan.windows
    lost_gain_seconds: PositiveFloat = GainSpan.seconds

    @model_validator(mode="after")
    def _names_a_store(self) -> Self:
        if not self.store:
            return self
        try:
            open_store(self._store_settings(password="")).close()
        except ConfigError as error:
            raise ValueError(f"gates.store: {error}") from error
        return self

    def gain_span(self) -> GainSpan:
        """How long a verifier looks before it judges the gain."""
        return GainSpan(windows=self.lost_gain_windows, seconds=self.lost_gain_seconds)

    def store_settings(self) -> StoreSettings:
        """Which store, with its password. Raises `ConfigError` when that cannot be had."""
        if self.password_env and self.password_env not in os.environ:
            raise ConfigError(
                f"the environment variable {self.password_env}, which should hold the password of the gate store, "
                "is not set"
            )
        return self._store_settings(password=os.environ.get(self.password_env, "") if self.password_env else "")

    def _store_settings(self, *, password: str) -> StoreSettings:
        files = TlsFiles(ca_file=self.ca_file, cert_file=self.cert_file, key_file=self.key_file)
        return StoreSettings(
            url=self.store,
            password=password,
            password_file=self.password_file,
            tls=files if files != TlsFiles() else None,
        )
