"""The configuration: one section per deployment, and one for the gates, checked before anything starts."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from deployments.ingress.auth import key_digest
from deployments.ingress.settings import IngressSettings
from deployments.lm.drafting.build import StrategySettings
from deployments.lm.drafting.ngram import NgramSettings
from deployments.lm.drafting.noise import NoiseSettings
from deployments.lm.drafting.oracle import OracleSettings
from deployments.lm.kernels.choice import Kernels
from deployments.lm.quant.linear import Precision
from deployments.verifier.loading import ModelSettings
from deployments.verifier.settings import VerifierSettings
from serve_app.gates_config import GatesConfig
from serve_app.gating.gatekeeper import Choosing, DrafterChoice, GateSettings
from serve_app.key_files import read_keys
from serve_app.model_fetch import served_name
from serve_app.sections import Placement, Section


class TokenizerConfig(Placement):
    """The tokenizer deployment."""


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
    """Copies from the request's own tokens: what followed the last occurrence of its last `max_n..min_n` tokens."""

    kind: Literal["ngram"] = "ngram"
    max_n: PositiveInt = 3
    min_n: PositiveInt = 2
    reason: str = "drafter.kind is ngram, picked by hand"

    def strategy(self, *, draft_k: int) -> StrategySettings:
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


class VerifierConfig(Placement):
    """The verifier deployment.

    Attributes:
        slots: requests in the batch at once.
        context: the most tokens of prompt and reply together.
        precision: `int8` stays close to f32; `int8-plain` is coarser.
        kernels: `native` needs AVX-512 with VNNI and a C++ compiler; `auto` takes it where it can be had, else `xla`.
        draft_k: the most drafts a request gets in one window.
        draft_rows: the most drafts of all requests in one window.
        draft_deadline_ms: the most a window waits for drafts.
        ladder: the row counts windows are compiled for.
        cache_pages: pages of the cache; none takes as many as all slots can fill.
        prefix_cache: whether prompts that begin alike share pages.
        kept_states: states of recurrent layers that are kept to be found again; none keeps one per slot.
        reserve_tokens: tokens of a reply for which pages are set aside at admission.
        prefill_budget: the most rows of a window for prompts while a stream is open.
        priority_step_s: seconds of waiting that one step of a request's `priority` is worth.
        max_queue: requests that may wait for a slot.
        stream_interval_ms: the longest a chunk of a stream is held back, to travel with the next; 16 ms per open stream
            at most. 0 sends a chunk per window.
        tpus: TPU chips per replica.
        compile_cache: where compiled programs are kept; empty keeps none.
    """

    slots: PositiveInt = 8
    context: PositiveInt = 2048
    precision: Precision = Precision.INT8
    kernels: Kernels = Kernels.AUTO
    draft_k: int = Field(default=7, ge=1, le=8)
    draft_rows: PositiveInt = 8
    draft_deadline_ms: PositiveFloat = 5.0
    ladder: tuple[PositiveInt, ...] = (8, 16, 32, 64, 128)
    page_size: PositiveInt = 64
    cache_pages: PositiveInt | None = None
    prefix_cache: bool = True
    kept_states: int | None = Field(default=None, ge=0)
    reserve_tokens: PositiveInt = 256
    prefill_budget: PositiveInt = 32
    priority_step_s: float = Field(default=10.0, ge=0)
    max_queue: int = Field(default=256, ge=0)
    stream_interval_ms: float = Field(default=40.0, ge=0)
    tpus: int = Field(default=0, ge=0)
    compile_cache: str = str(Path.home() / ".cache" / "outrider" / "programs")


class IngressConfig(Placement):
    """The ingress deployment.

    Attributes:
        api_keys_file: a file with one key per line; none leaves the API open.
        api_keys_env: the name of an environment variable with keys separated by commas.
        admin_keys_file, admin_keys_env: the same for keys that open `/admin`; without any it is closed.
    """

    max_in_flight: PositiveInt = 256
    max_choices: PositiveInt = 16
    max_body_bytes: PositiveInt = 4 * 1024 * 1024
    request_timeout_s: PositiveFloat | None = None
    api_keys_file: str = ""
    api_keys_env: str = ""
    admin_keys_file: str = ""
    admin_keys_env: str = ""


_CHOOSING = {
    "auto": Choosing.AUTO,
    # They are wrong, or right, on purpose: there is nothing to measure.
    "random": Choosing.UNGATED,
    "oracle": Choosing.UNGATED,
}


class AppConfig(Section):
    """The whole application.

    Attributes:
        model: a `.gguf` file, a checkpoint's folder, a name in the catalog, or a hub repository.
        served_name: the id clients name; none takes the name in the catalog, the repository, or the name in the file.
    """

    # What is wrong may be the address of a store, with its password.
    model_config = ConfigDict(hide_input_in_errors=True)

    model: str = "smollm2-135m"
    served_name: str | None = None
    tokenizer: TokenizerConfig = TokenizerConfig()
    drafter: DrafterConfig = AutoConfig()
    verifier: VerifierConfig = VerifierConfig()
    ingress: IngressConfig = IngressConfig()
    gates: GatesConfig = GatesConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if isinstance(self.drafter, NgramConfig) and self.drafter.min_n > self.drafter.max_n:
            raise ValueError(f"drafter.min_n ({self.drafter.min_n}) must not exceed max_n ({self.drafter.max_n})")
        if isinstance(self.drafter, AutoConfig) and not self.gates.store:
            raise ValueError("drafter.kind auto asks the gates; set gates.store, or choose another kind")
        return self

    def verifier_settings(self) -> VerifierSettings:
        """What the verifier is told."""
        section = self.verifier
        drafts = not isinstance(self.drafter, OffConfig)
        return VerifierSettings(
            model=ModelSettings(
                model_path=self.model,
                precision=section.precision,
                kernels=section.kernels,
                slots=section.slots,
                context=section.context,
                page_size=section.page_size,
                draft_k=section.draft_k if drafts else 0,
                draft_rows=section.draft_rows,
                ladder=section.ladder,
                compile_cache=section.compile_cache,
                cache_pages=section.cache_pages,
                prefix_cache=section.prefix_cache,
                kept_states=section.kept_states,
                reserve_tokens=section.reserve_tokens,
                prefill_budget=section.prefill_budget,
                priority_step_s=section.priority_step_s,
            ),
            served_model=self._served_name(),
            draft_deadline_s=section.draft_deadline_ms / 1e3,
            max_queue=section.max_queue,
            stream_interval_s=section.stream_interval_ms / 1e3,
        )

    def gate_settings(self) -> GateSettings:
        """What the gatekeeper is told. Raises `ConfigError` when the store cannot be named so."""
        drafter = self.drafter
        return GateSettings(
            store=self.gates.store_settings(),
            choosing=_CHOOSING.get(drafter.kind, Choosing.PICKED) if self.gates.store else Choosing.UNGATED,
            drafters=self.drafter_choices(),
            reason=drafter.reason,
            order=self.gates.auto_order,
            least_gain=self.gates.least_gain,
        )

    def drafter_choices(self) -> tuple[DrafterChoice, ...]:
        """The drafters that may run, in the order of the documents."""
        drafter = self.drafter
        if isinstance(drafter, OffConfig):
            return ()
        kind = "ngram" if isinstance(drafter, AutoConfig) else drafter.kind
        return (DrafterChoice(kind=kind, settings=drafter.strategy(draft_k=self.verifier.draft_k)),)

    def api_keys(self) -> tuple[str, ...]:
        """The keys themselves, which stay in this process. Raises `ConfigError` when they cannot be read."""
        section = self.ingress
        return read_keys(file=section.api_keys_file, env=section.api_keys_env, what="API")

    def admin_keys(self) -> tuple[str, ...]:
        """The same for the keys that open `/admin`."""
        section = self.ingress
        return read_keys(file=section.admin_keys_file, env=section.admin_keys_env, what="admin")

    def ingress_settings(self) -> IngressSettings:
        """What the ingress is told. Raises `ConfigError` when the keys cannot be read."""
        section = self.ingress
        return IngressSettings(
            served_model=self._served_name(),
            api_key_digests=tuple(key_digest(key) for key in self.api_keys()),
            admin_key_digests=tuple(key_digest(key) for key in self.admin_keys()),
            max_in_flight=section.max_in_flight,
            max_choices=section.max_choices,
            max_body_bytes=section.max_body_bytes,
            request_timeout_s=section.request_timeout_s,
        )

    def _served_name(self) -> str | None:
        return self.served_name or served_name(self.model)
