"""Windows a second with drafts from the device and from elsewhere: `python -m tests.bench.rounds [MODEL] [RUNS]`.

One text that repeats itself, so that most drafts are kept, answered with n-gram drafts from a replica of its own, from
the verifier's process, and on its device, up to 4 and 16 windows in one call. The replies are the same.
"""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.table import Table

from deployments.lm.drafting.ngram import NgramSettings
from deployments.messages.generation import GenerateRequest, SamplingSettings
from deployments.verifier.calls import ChipSettings
from deployments.verifier.drafts import DraftSource
from deployments.verifier.engine import Engine
from deployments.verifier.links import LinkSettings
from deployments.verifier.loading import LoadedModel, load_model, to_stderr
from deployments.verifier.remote import RemoteDrafts
from deployments.verifier.sizing import ModelSettings
from serve_app.benchmark.alternation import Arm, Effort, alternate, spread
from serve_app.benchmark.drafter_link import drafter_process, linked
from serve_app.benchmark.host import Recorder
from serve_app.config import VerifierConfig
from serve_app.model_fetch import resolve_model

DRAFT_K, TOKENS, CALLS = 7, 128, (4, 16)
STREAMS = (1, 4)

type Sample = tuple[float, int, float]


class _Windows(Recorder):
    """Counts windows, and their seconds on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.windows = 0

    def observe(self, name: str, *, value: float, labels: tuple[str, ...] = ()) -> None:
        """Windows alone."""
        del labels
        if name == "window_seconds":
            self.seconds += value
            self.windows += 1


def requests(model: LoadedModel, *, streams: int) -> list[GenerateRequest]:
    """Texts of 24 tokens, six times each."""
    tokens = np.random.default_rng(0).integers(1000, model.config.vocabulary, (streams, 24))
    return [
        GenerateRequest(
            request_id=f"{number}",
            prompt_ids=tuple(text * 6),
            max_tokens=TOKENS,
            sampling=SamplingSettings(temperature=0.0),
        )
        for number, text in enumerate(tokens.tolist())
    ]


def arm(model: LoadedModel, *, drafts: DraftSource, rounds: int, streams: int) -> Arm[Sample]:
    """Answers everything: seconds, windows, and seconds of windows."""
    chip = ChipSettings(drafter=NgramSettings(max_k=DRAFT_K), rounds=max(rounds, 1))
    own = replace(model, settings=replace(model.settings, chip=chip))

    def run(_: int) -> Sample:
        seen = _Windows()
        engine: Engine = own.engine(drafts=drafts, metrics=seen, on_chip=rounds > 0)
        started = time.perf_counter()
        said = answer(engine, requests(model, streams=streams))
        seconds = time.perf_counter() - started
        assert set(said.values()) == {TOKENS}
        return seconds, seen.windows, seen.seconds

    return run


def answer(engine: Engine, asked: Sequence[GenerateRequest]) -> Counter[str]:
    """How many tokens each got."""
    said: Counter[str] = Counter()
    for request in asked:
        engine.submit(request)
    while not engine.is_idle:
        for delivery in engine.step():
            if delivery.chunk is not None:
                said[delivery.request_id] += len(delivery.chunk.token_ids)
    return said


def main(name: str = "smollm2-135m", runs: str = "7") -> None:
    """Prints one line per case."""
    drafter = NgramSettings(max_k=DRAFT_K)
    settings = ModelSettings(
        model_path=str(resolve_model(name)),
        slots=8,
        context=512,
        draft_k=DRAFT_K,
        draft_rows=8,
        ladder=(8, 16, 64),
        prefix_cache=False,
        chip=ChipSettings(drafter=drafter, rounds=max(CALLS)),
        compile_cache=VerifierConfig().compile_cache,
    )
    model = load_model(settings, progress=to_stderr("loading"))
    link = LinkSettings(verifier="bench", vocab_size=model.config.vocabulary, k_max=DRAFT_K, deadline_s=0.005)
    table = Table("drafts from", "streams", "tokens/s", "windows", "windows/s", "ms of a reply outside windows")
    with drafter_process(drafter) as endpoint, linked(endpoint, settings=link, metrics=Recorder()) as links:
        for streams in STREAMS:
            arms = {
                "a replica of its own": arm(model, drafts=RemoteDrafts(links), rounds=0, streams=streams),
                "the verifier's process": arm(model, drafts=model.chip_drafts(), rounds=0, streams=streams),
            } | {
                f"its device, {rounds} in a call": arm(
                    model, drafts=model.chip_drafts(), rounds=rounds, streams=streams
                )
                for rounds in CALLS
            }
            for case, samples in alternate(arms, effort=Effort(rounds=int(runs), warm_ups=2)).items():
                seconds = spread([seconds for seconds, _, _ in samples]).median
                windows = spread([float(windows) for _, windows, _ in samples]).median
                outside = spread([seconds - inside for seconds, _, inside in samples]).median
                table.add_row(
                    case,
                    str(streams),
                    f"{streams * TOKENS / seconds:.1f}",
                    f"{windows:.0f}",
                    f"{windows / seconds:.1f}",
                    f"{1e3 * outside:.1f}",
                )
    Console(width=120).print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
