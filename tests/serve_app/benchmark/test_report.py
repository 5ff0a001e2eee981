"""What is measured in process, on the golden llama, and the report with everything in it."""

import json
import math
import os
from dataclasses import fields, is_dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deployments.lm.quant.linear import Precision
from deployments.verifier.loading import LoadedModel, load_model
from deployments.verifier.sizing import ModelSettings
from serve_app.benchmark.alternation import Effort
from serve_app.benchmark.draws import measure_draws
from serve_app.benchmark.exchange import measure_exchange, measure_wait
from serve_app.benchmark.host import measure_host
from serve_app.benchmark.machine import machine_facts
from serve_app.benchmark.processes import measure_idle
from serve_app.benchmark.report import ProcessReport, Report, ServiceReport, Subject
from serve_app.benchmark.service import Workload, measure_first_token, measure_halted_drafter, measure_speed
from serve_app.benchmark.tables import tables
from serve_app.benchmark.windows import full_window, measure_windows
from tests.serve_app.benchmark.stage import IDS, TWICE, ingress, verifier_with


@pytest.fixture(scope="module")
def model(golden_llama: Path) -> LoadedModel:
    settings = ModelSettings(
        model_path=str(golden_llama / "llama.f16.gguf"),
        precision=Precision.F32,
        slots=4,
        context=128,
        page_size=32,
        ladder=(8, 16),
    )
    return load_model(settings, progress=lambda _: None)


@pytest.fixture(scope="module")
def measured(model: LoadedModel) -> ProcessReport:
    return ProcessReport(
        windows=measure_windows(model, contexts=(64, 128, 4096), effort=TWICE),
        draws=measure_draws(model, ids=IDS, context=128, effort=TWICE),
        host=measure_host(model, ids=IDS, windows=5),
        exchange=measure_exchange(IDS[:40] * 4, requests=4, draft_k=3, rounds=5),
        wait=measure_wait(model, ids=IDS[:40] * 4, windows=4),
    )


def test_a_full_window_fills_its_rung(model: LoadedModel) -> None:
    for rung in model.report.ladder.rungs:
        window = full_window(model, rung=rung, context=96)
        assert window.rows.shape[0] == rung.rows
        assert len(set(map(tuple, window.rows[:, 2:4]))) == rung.rows  # every row has its own place in the cache
        assert window.rows[:, 1].max() == 95


def test_what_is_measured_in_process_makes_sense(model: LoadedModel, measured: ProcessReport) -> None:
    rungs = {(rung.rows, rung.tiles) for rung in model.report.ladder.rungs}
    assert {(w.rows, w.tiles, w.context) for w in measured.windows} == {
        (*rung, at) for rung in rungs for at in (64, 128)
    }
    assert {draw.rows for draw in measured.draws} == set(model.report.ladder.emits)
    assert {draw.sampler for draw in measured.draws} >= {"greedy", "T 0.8", "T 0.8, top_p 0.95", "T 0.8, top_k 40"}
    assert all(0 <= draw.share.median < 1 and draw.seconds.least > 0 for draw in measured.draws)
    assert measured.host.slots == 4
    assert 0 < measured.host.share.median < 1
    assert measured.host.host.runs == 5
    assert measured.exchange.requests == 4
    assert 0 < measured.exchange.seconds.median < 1
    assert measured.exchange.drafts > 0
    assert 0 < measured.wait.median < 1
    assert measured.wait.runs >= 4


def test_the_report_is_whole_as_json_and_as_tables(measured: ProcessReport) -> None:
    with ingress(verifier_with(1)) as service:
        workload = Workload(name="chat", prompts=("one",), max_tokens=5)
        speeds = (measure_speed(service, workload=workload, streams=1, effort=TWICE),)
        first_tokens = measure_first_token(service, ids=IDS, lengths=(16,), effort=TWICE)
        halted_drafter = measure_halted_drafter(
            service, workload=workload, streams=1, drafters=list, effort=Effort(rounds=1, warm_ups=0)
        )
    report = Report(
        machine=machine_facts(),
        subject=Subject(model="m", precision="f32", slots=4, context=128, draft_k=3, is_quick=True),
        service=ServiceReport(
            speeds=speeds,
            first_tokens=first_tokens,
            halted_drafter=halted_drafter,
            idle=measure_idle(root=os.getpid(), seconds=0.01),
        ),
        process=measured,
        seconds=1.0,
    )
    compare(json.loads(report.to_json()), report)
    console = Console(width=120, record=True, file=StringIO())
    console.print(tables(report))
    shown = console.export_text()
    assert "…" not in shown
    for wanted in ("chat", "drafter halted", "16-token prompt", "idle service", "at 64 tokens", "top_p 0.95", "jax"):
        assert wanted in shown


def compare(read: Any, kept: Any) -> None:
    """Every field of every record is there, and every number is one."""
    if is_dataclass(kept):
        assert set(read) == {field.name for field in fields(kept)}
        for field in fields(kept):
            compare(read[field.name], getattr(kept, field.name))
    elif isinstance(kept, tuple):
        for one, other in zip(read, kept, strict=True):
            compare(one, other)
    else:
        assert read == kept
        assert not isinstance(kept, float) or math.isfinite(kept)
