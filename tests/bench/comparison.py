"""Outrider and llama.cpp's server in alternation: first the peer's best settings for each case, then both in turn."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from deployments.messages.errors import OutriderError
from serve_app.benchmark.alternation import Arm, Effort, Spread, alternate, quotients, spread
from serve_app.benchmark.machine import MachineFacts
from serve_app.benchmark.streams import Ask, Batch, run_streams
from serve_app.local import Service
from tests.bench.cases import Case, Figure
from tests.bench.llama_server import Peer, Variant

type Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """The peer alone, in one setting.

    Attributes:
        values: the case's figures, in its order.
        acceptance: share of the drafted tokens that were accepted; 0 without drafts.
    """

    case: str
    variant: str
    values: tuple[Spread, ...]
    acceptance: float
    is_best: bool


@dataclass(frozen=True, kw_only=True)
class FigureResult:
    """One figure of both sides; `ratio` is ours over the peer's, round by round."""

    case: str
    figure: str
    unit: str
    ours: Spread
    peer: Spread
    ratio: Spread
    wanted: float
    is_met: bool
    variant: str
    our_acceptance: float
    peer_acceptance: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that was found.

    Attributes:
        results: empty where the peer was measured alone.
    """

    machine: MachineFacts
    peer: str
    model: str
    precision: str
    trials: tuple[TrialResult, ...]
    results: tuple[FigureResult, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A case, the peer's best setting for it, and how the others did."""

    case: Case
    best: Variant
    trials: tuple[TrialResult, ...]


def try_variants(peer: Peer, /, *, case: Case, effort: Effort) -> Chosen:
    """Runs all the case's settings of the peer in turn.

    Raises:
        OutriderError: one of them did not start, or broke off.
    """
    with ExitStack() as running:
        # All of them at once: a server that is asked nothing takes memory but no time.
        urls = {variant: running.enter_context(peer.serving(variant)) for variant in case.variants}
        runs = alternate({v: partial(_ask_peer, url, case) for v, url in urls.items()}, effort=effort)
    decisive = case.figures[0]
    medians = {variant: spread(_values(decisive, batches=batches)).median for variant, batches in runs.items()}
    best = (max if decisive.is_rate else min)(medians, key=lambda variant: medians[variant])
    trials = tuple(
        TrialResult(
            case=case.name,
            variant=variant.name,
            values=tuple(spread(_values(figure, batches=batches)) for figure in case.figures),
            acceptance=_acceptance(batches),
            is_best=variant == best,
        )
        for variant, batches in runs.items()
    )
    return Chosen(case=case, best=best, trials=trials)


def compare(service: Service, /, *, peer: Peer, chosen: Chosen, effort: Effort) -> tuple[FigureResult, ...]:
    """Runs both sides in turn, the same prompts in a round; while one works the other is asked nothing.

    Raises:
        OutriderError: one of them refused a request, or broke off.
    """
    case = chosen.case

    def ask_ours(turn: int) -> Batch:
        return _ask(service.url, model=service.model, asks=case.ours(turn))

    with peer.serving(chosen.best) as url:
        arms: dict[str, Arm[Batch]] = {"ours": ask_ours, "peer": partial(_ask_peer, url, case)}
        runs = alternate(arms, effort=effort)
    return tuple(_result(figure, chosen=chosen, ours=runs["ours"], peer=runs["peer"]) for figure in case.figures)


def _result(figure: Figure, *, chosen: Chosen, ours: Sequence[Batch], peer: Sequence[Batch]) -> FigureResult:
    our_values, peer_values = (_values(figure, batches=batches) for batches in (ours, peer))
    ratio = spread(quotients(our_values, lower=peer_values))
    return FigureResult(
        case=chosen.case.name,
        figure=figure.name,
        unit=figure.unit,
        ours=spread(our_values),
        peer=spread(peer_values),
        ratio=ratio,
        wanted=figure.wanted,
        is_met=ratio.median >= figure.wanted if figure.is_rate else ratio.median <= figure.wanted,
        variant=chosen.best.name,
        our_acceptance=_acceptance(ours),
        peer_acceptance=_acceptance(peer),
    )


def _ask_peer(url: str, case: Case, turn: int) -> Batch:
    # The server answers to any model name.
    return _ask(url, model="peer", asks=case.peers(turn))


def _ask(url: str, *, model: str, asks: Sequence[Ask]) -> Batch:
    batch = run_streams(url, model=model, asks=asks)
    if short := [
        reply.tokens for reply, ask in zip(batch.replies, asks, strict=True) if reply.tokens != ask.max_tokens
    ]:
        # Rates over replies of different lengths would compare different work.
        raise OutriderError(
            f"{url} was asked for {asks[0].max_tokens} tokens and sent {short}; it has not ignored the end"
        )
    return batch


def _values(figure: Figure, *, batches: Sequence[Batch]) -> tuple[float, ...]:
    return tuple(figure.of(batch) for batch in batches)


def _acceptance(batches: Sequence[Batch]) -> float:
    drafted = sum(batch.drafted for batch in batches)
    return sum(batch.accepted for batch in batches) / drafted if drafted else 0.0
