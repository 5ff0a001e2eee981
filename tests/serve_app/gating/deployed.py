"""A deployment of the small model as `AppConfig` describes it, with gates that let its drafter run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from deployments.messages.ports import GateWatch
from deployments.verifier.loading import LoadedModel
from serve_app.cli import app
from serve_app.config import AppConfig
from serve_app.gating.file_store import FileStore
from serve_app.gating.gatekeeper import StoreGatekeeper
from serve_app.gating.keys import ProfitKey
from serve_app.gating.running import exactness_key, profit_key
from tests.serve_app.gating.making import exactness, profit

# What `small_model` was loaded with.
VERIFIER: dict[str, Any] = {
    "slots": 4,
    "context": 128,
    "page_size": 16,
    "precision": "f32",
    "kernels": "xla",
    "draft_k": 3,
    "draft_rows": 12,
    "ladder": [8, 16],
}


def settings(model: Path, *, store: Path, **verifier: Any) -> dict[str, Any]:
    return {"model": str(model), "verifier": {**VERIFIER, **verifier}, "gates": {"store": f"file:{store}"}}


def config(model: Path, *, store: Path, **verifier: Any) -> AppConfig:
    return AppConfig.model_validate(settings(model, store=store, **verifier))


def pairing(model: LoadedModel, *, deployed: AppConfig) -> ProfitKey:
    """The key of n-gram on these programs."""
    (choice,) = deployed.drafter_choices()
    return profit_key(exactness_key(model.facts()), kind=choice.kind, settings=choice.settings)


def passed(model: LoadedModel, *, deployed: AppConfig, ratios: dict[int, float]) -> FileStore:
    """The store of the deployment, with records by which its drafter is exact and as fast as that."""
    store = FileStore(Path(deployed.gates.store.removeprefix("file:")))
    key = pairing(model, deployed=deployed)
    store.put(exactness(key.program))
    store.put(profit(key, ratios=ratios))
    return store


@contextmanager
def watching(model: LoadedModel, *, deployed: AppConfig) -> Iterator[GateWatch]:
    """What a verifier of this deployment obeys."""
    watch = StoreGatekeeper(settings=deployed.gate_settings())(model.facts())
    try:
        yield watch
    finally:
        watch.close()


def gate(*words: str, status: int = 0) -> str:
    """`outrider gate` as it is typed."""
    done = CliRunner().invoke(app, ["gate", *words], env={"COLUMNS": "200"})
    assert done.exit_code == status, (done.output, done.exception)
    return done.output
