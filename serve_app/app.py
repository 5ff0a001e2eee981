"""The application: the only file that binds deployments together.

serve run serve_app.app:build model=smollm2-135m
"""

from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application

from deployments.drafter.deployment import DrafterServer
from deployments.ingress.deployment import IngressServer
from deployments.tokenizer.deployment import TokenizerServer
from deployments.verifier.deployment import VerifierServer
from serve_app.chip_placement import actor_options
from serve_app.config import AppConfig
from serve_app.drafter_config import OffConfig
from serve_app.gating.gatekeeper import StoreGatekeeper
from serve_app.metrics import ReplicaMetrics
from serve_app.model_fetch import resolve_model
from serve_app.sections import Placement

_MANY = 100_000


def locate_model(model: str, /) -> Path:
    """Where `model` lies on this machine, fetched if need be; runs in every replica that reads it."""
    return resolve_model(model)


def build(config: AppConfig) -> Application:
    """Binds the four deployments; Serve passes the `args` of a config file, checked against `AppConfig`."""
    metrics = ReplicaMetrics(chip="tpu" if config.verifier.tpus else "cpu")
    tokenizer = _deployment(TokenizerServer, name="tokenizer", placement=config.tokenizer).bind(
        model=config.model, locate=locate_model, metrics=metrics
    )
    drafter = _bind_drafter(config, metrics=metrics)
    verifier = _deployment(VerifierServer, name="verifier", placement=config.verifier, tpus=config.verifier.tpus).bind(
        settings=config.verifier_settings(),
        locate=locate_model,
        drafter=drafter,
        gatekeeper=StoreGatekeeper(settings=config.gate_settings()),
        metrics=metrics,
    )
    bound: Application = _deployment(serve.ingress()(IngressServer), name="ingress", placement=config.ingress).bind(
        tokenizer=tokenizer,
        verifier=verifier,
        drafter=drafter,
        settings=config.ingress_settings(),
        metrics=metrics,
    )
    return bound


def _bind_drafter(config: AppConfig, *, metrics: ReplicaMetrics) -> Application | None:
    section = config.drafter
    if isinstance(section, OffConfig) or config.chip is not None:
        return None
    bound: Application = _deployment(DrafterServer, name="drafter", placement=section).bind(
        strategy=section.strategy(draft_k=config.verifier.draft_k),
        listen_host=section.listen_host or None,
        metrics=metrics,
    )
    return bound


def _deployment(cls: type, *, name: str, placement: Placement, tpus: int = 0) -> Any:
    """Admission is the ingress's and the verifier's own work; Serve's limits stay out of its way."""
    return serve.deployment(
        cls,
        name=name,
        num_replicas=placement.replicas,
        max_ongoing_requests=_MANY,
        health_check_period_s=2.0,
        health_check_timeout_s=30.0,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=5.0,
        ray_actor_options=actor_options(cpus=placement.cpus, chips=tpus),
    )
