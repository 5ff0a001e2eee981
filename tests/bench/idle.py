"""What the idle service uses beside an empty graph: the same four deployments, once ours and once with nothing in them.

python -m tests.bench.idle [SECONDS [ROUNDS]]

Both run on one cluster, in turn. CPU time is the kernel's, of every process of the cluster; the difference of the
medians should be at most 3 % of a core.
"""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from os import getpid
from pathlib import Path
from typing import Any

from ray import serve
from starlette.requests import Request

from serve_app.benchmark.processes import measure_idle
from serve_app.config import AppConfig
from serve_app.local import APP, Cluster, cluster

_SETTLE_S = 10.0
_MODEL = Path(__file__).parents[1] / "data" / "golden" / "llama" / "llama.f16.gguf"


class Nothing:
    """A deployment that holds handles of others and never uses them."""

    def __init__(self, *others: Any) -> None:
        self._others = others

    async def __call__(self, _: Request) -> str:
        return "nothing"


@contextmanager
def _empty(_: Cluster) -> Iterator[None]:
    tokenizer, drafter = (_deployment(name).bind() for name in ("tokenizer", "drafter"))
    verifier = _deployment("verifier").bind(drafter)
    try:
        serve.run(_deployment("ingress").bind(tokenizer, verifier, drafter), name=APP, route_prefix="/")
        yield
    finally:
        serve.delete(APP)


def _deployment(name: str) -> Any:
    return serve.deployment(Nothing, name=name, ray_actor_options={"num_cpus": 0.1})


@contextmanager
def _ours(machine: Cluster) -> Iterator[None]:
    verifier = {"precision": "f32", "context": 512}
    config = AppConfig.model_validate(
        {
            "model": str(_MODEL),
            "drafter": {"kind": "ngram"},
            "gates": {"store": ""},
            "verifier": verifier,
        }
    )
    with machine.runs(config):
        yield


def main() -> None:
    """Measures in turn and prints the medians."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    totals: defaultdict[str, list[float]] = defaultdict(list)
    with cluster(quiet=True) as machine:
        for _ in range(rounds):
            for name, graph in (("empty", _empty), ("ours", _ours)):
                with graph(machine):
                    time.sleep(_SETTLE_S)
                    result = measure_idle(root=getpid(), seconds=seconds)
                totals[name].append(result.total_percent)
                parts = ", ".join(f"{role} {percent:.1f}" for role, percent in result.percent.items())
                print(f"{name:6} {result.total_percent:5.1f} % of a core: {parts}", flush=True)
    empty, ours = (statistics.median(totals[name]) for name in ("empty", "ours"))
    print(f"empty {empty:.1f} %, ours {ours:.1f} %, difference {ours - empty:.1f} % of a core")


if __name__ == "__main__":
    main()
