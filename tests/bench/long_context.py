"""What a window of eight streams costs as their contexts grow: `python -m tests.bench.long_context [MODEL] [RUNS]`.

Contexts of one length, then one long stream among short ones: the cost should follow each slot's own length.
"""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from deployments.verifier.loading import LoadedModel, load_model, to_stderr
from deployments.verifier.packing import PackedWindow, pack
from deployments.verifier.plan import Span, StepPlan
from deployments.verifier.sizing import ModelSettings
from serve_app.benchmark.alternation import Arm, Effort, alternate, spread
from serve_app.benchmark.windows import body_seconds, segments_of, slot_of
from serve_app.config import VerifierConfig
from serve_app.model_fetch import resolve_model

SLOTS, CONTEXT = 8, 8192
CASES: dict[str, tuple[int, ...]] = {
    "8 slots at 512": (512,) * 8,
    "8 slots at 2,048": (2048,) * 8,
    "8 slots at 8,000": (8000,) * 8,
    "7 slots at 512, one at 8,000": (8000, *(512,) * 7),
    "1 slot at 512": (512,),
    "1 slot at 2,048": (2048,),
    "1 slot at 8,000": (8000,),
}


def window_of(model: LoadedModel, *, contexts: Sequence[int]) -> PackedWindow:
    """One decoding row per slot, at the end of its context."""
    spans = tuple(
        Span(
            slot=slot_of(model, number=number, tokens=(number,)),
            start=context - 1,
            tokens=(number,),
            emits=0,
            segments=segments_of(model, number=number, rows=1),
        )
        for number, context in enumerate(contexts)
    )
    plan = StepPlan(spans=spans)
    rung = model.report.ladder.rung_for(rows=plan.rows, tiles=plan.tiles)
    return pack(
        plan,
        rung=rung,
        emits=0,
        page_size=model.settings.page_size,
        slot_pages=model.programs.slot_pages,
        room=model.programs.room,
    )


def arm(model: LoadedModel, *, contexts: Sequence[int]) -> Arm[float]:
    """Times one window's layers."""
    window = window_of(model, contexts=contexts)
    return lambda _: body_seconds(model, window=window)


def main(name: str = "smollm2-135m", runs: str = "60") -> None:
    """Prints one line per case."""
    settings = ModelSettings(
        model_path=str(resolve_model(name)),
        slots=SLOTS,
        context=CONTEXT,
        draft_k=0,
        ladder=(8,),
        compile_cache=VerifierConfig().compile_cache,
    )
    model = load_model(settings, progress=to_stderr("loading"))
    arms = {case: arm(model, contexts=contexts) for case, contexts in CASES.items()}
    times = alternate(arms, effort=Effort(rounds=int(runs), warm_ups=3))
    table = Table("window", "tokens seen", "ms, median", "smallest", "largest")
    for case, contexts in CASES.items():
        found = spread(times[case])
        cells = (f"{1e3 * value:.1f}" for value in (found.median, found.least, found.most))
        table.add_row(case, f"{sum(contexts):,}", *cells)
    Console().print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
