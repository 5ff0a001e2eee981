"""What the engine's own thread costs beside the device: planning, packing and handing out, as the engine reports it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from deployments.messages.generation import GenerateRequest, SamplingSettings
from deployments.verifier.drafts import NoDrafts
from deployments.verifier.engine import Engine
from deployments.verifier.loading import LoadedModel
from serve_app.benchmark.alternation import Spread, quotients, spread

_PROMPT = 32


@dataclass(frozen=True, kw_only=True)
class HostResult:
    """Seconds per window with all slots decoding.

    Attributes:
        share: host over host and device, window by window.
    """

    slots: int
    host: Spread
    device: Spread
    share: Spread


class Recorder:
    """A `Metrics` that keeps what is observed, in order, and nothing else."""

    def __init__(self) -> None:
        self.observed: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, name: str, *, amount: float = 1.0, labels: tuple[str, ...] = ()) -> None:
        """Counts are not kept."""

    def set(self, name: str, *, value: float, labels: tuple[str, ...] = ()) -> None:
        """Gauges are not kept."""

    def observe(self, name: str, *, value: float, labels: tuple[str, ...] = ()) -> None:
        """Keeps `value`; labels are dropped."""
        self.observed[name].append(value)

    def exposition(self) -> str:
        return ""


def step_until_decoding(engine: Engine, /, *, slots: int) -> None:
    """Runs windows until so many requests are past their prompts."""
    while not engine.is_idle and sum(slot.is_decoding for slot in engine.scheduler.active) < slots:
        engine.step()


def measure_host(model: LoadedModel, *, ids: Sequence[int], windows: int) -> HostResult:
    """Fills every slot with a plain request and runs `windows` windows once all are decoding."""
    recorder = Recorder()
    engine = model.engine(drafts=NoDrafts(), metrics=recorder)
    room = model.settings.context
    prompt = tuple(ids[: min(_PROMPT, room // 2)])
    for number in range(model.settings.slots):
        engine.submit(
            GenerateRequest(
                request_id=f"bench-{number}",
                prompt_ids=prompt,
                max_tokens=room - len(prompt),
                sampling=SamplingSettings(temperature=0.0),
            )
        )
    step_until_decoding(engine, slots=model.settings.slots)
    recorder.observed.clear()
    for _ in range(min(windows, room - len(prompt) - 1)):
        engine.step()
    host, device = recorder.observed["host_seconds"], recorder.observed["window_seconds"]
    whole = [a + b for a, b in zip(host, device, strict=True)]
    return HostResult(
        slots=model.settings.slots,
        host=spread(host),
        device=spread(device),
        share=spread(quotients(host, lower=whole)),
    )
