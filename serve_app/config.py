"""The configuration: one section per deployment, and one for the gates, checked before anything starts."""

from pathlib import Path
from typing import Self

from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt, field_validator, model_validator

from deployments.ingress.auth import key_digest
from deployments.ingress.settings import IngressSettings
from deployments.lm.kernels.choice import Kernels
from deployments.lm.quant.linear import Precision
from deployments.verifier.calls import ChipSettings
from deployments.verifier.settings import VerifierSettings
from deployments.verifier.sizing import ModelSettings
from serve_app.chip_placement import chip_environment
from serve_app.drafter_config import AutoConfig, DrafterConfig, NgramConfig, OffConfig
from serve_app.gates_config import GatesConfig
from serve_app.gating.gatekeeper import Choosing, DrafterChoice, GateSettings
from serve_app.key_files import read_keys
from serve_app.model_fetch import served_name
from serve_app.sections import Placement, Section


class TokenizerConfig(Placement):
    """The tokenizer deployment."""


class VerifierConfig(Placement):
    """The verifier deployment.

    Attributes:
        slots: requests in the batch at once.
        context: the most tokens of prompt and reply together.
        precision: `int8` stays close to f32; `int8-plain` is coarser; `w8a16` is for TPUs.
        kernels: `native` needs AVX-512 with VNNI and a C++ compiler; `auto` takes it where it can be had, else `xla`.
        tensor_parallel: devices of a replica that share the model.
        draft_k: the most drafts a request gets in one window.
        draft_rows: the most drafts of all requests in one window; none takes 8 on a processor, where each row costs,
            and sets no limit on TPU chips, which read the weights for 8 rows or for 64.
        draft_deadline_ms: the most a window waits for drafts.
        rounds: the most windows of one device call where drafts come from the device.
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
        tpus: TPU chips per replica: none, 1, 2, 4 or 8 of a host.
        compile_cache: where compiled programs are kept; empty keeps none.
    """

    slots: PositiveInt = 8
    context: PositiveInt = 2048
    precision: Precision = Precision.INT8
    kernels: Kernels = Kernels.AUTO
    tensor_parallel: PositiveInt = 1
    draft_k: int = Field(default=7, ge=1, le=8)
    draft_rows: PositiveInt | None = None
    draft_deadline_ms: PositiveFloat = 5.0
    rounds: int = Field(default=4, ge=1, le=64)
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

    @field_validator("tpus")
    @classmethod
    def _is_part_of_a_host(cls, chips: int) -> int:
        chip_environment(chips)
        return chips

    @model_validator(mode="after")
    def _uses_its_chips(self) -> Self:
        # A chip of TPU v7x is two devices.
        if self.tpus and self.tensor_parallel not in (self.tpus, 2 * self.tpus):
            raise ValueError(
                f"tensor_parallel {self.tensor_parallel} does not fit {self.tpus} TPU chips; set it to {self.tpus}, "
                f"or to {2 * self.tpus} where a chip is two devices"
            )
        return self


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


# On a processor.
_ROWS_OF_DRAFTS = 8
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
                tensor_parallel=section.tensor_parallel,
                slots=section.slots,
                context=section.context,
                page_size=section.page_size,
                draft_k=section.draft_k if drafts else 0,
                draft_rows=section.draft_rows or (None if section.tpus else _ROWS_OF_DRAFTS),
                ladder=section.ladder,
                compile_cache=section.compile_cache,
                cache_pages=section.cache_pages,
                prefix_cache=section.prefix_cache,
                kept_states=section.kept_states,
                reserve_tokens=section.reserve_tokens,
                prefill_budget=section.prefill_budget,
                priority_step_s=section.priority_step_s,
                chip=self.chip,
            ),
            served_model=self._served_name(),
            draft_deadline_s=section.draft_deadline_ms / 1e3,
            max_queue=section.max_queue,
            stream_interval_s=section.stream_interval_ms / 1e3,
            gain_span=self.gates.gain_span(),
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
            on_lost_gain=self.gates.on_lost_gain,
        )

    def drafter_choices(self) -> tuple[DrafterChoice, ...]:
        """The drafters that may run, in the order of the documents."""
        drafter = self.drafter
        if isinstance(drafter, OffConfig):
            return ()
        kind = "ngram" if isinstance(drafter, AutoConfig) else drafter.kind
        settings = drafter.strategy(draft_k=self.verifier.draft_k)
        return (DrafterChoice(kind=kind, settings=settings, placement="chip" if self.chip else "remote"),)

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

    @property
    def chip(self) -> ChipSettings | None:
        """The drafter on the verifier's device, if that is where it is; then none is deployed."""
        drafter, section = self.drafter, self.verifier
        if not isinstance(drafter, NgramConfig) or drafter.placement != "chip":
            return None
        return ChipSettings(drafter=drafter.strategy(draft_k=section.draft_k), rounds=section.rounds)

    def _served_name(self) -> str | None:
        return self.served_name or served_name(self.model)
