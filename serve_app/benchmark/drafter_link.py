"""A drafter in a process of its own, and the verifier's own links to it. Knows no engine and measures nothing."""

import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from deployments.lm.drafting.build import StrategySettings
from deployments.messages.drafting import DrafterEndpoint
from deployments.messages.errors import Unavailable
from deployments.messages.metrics import Metrics
from deployments.verifier.links import DrafterLinks, LinkSettings

_CONNECT_S = 30.0


@contextmanager
def drafter_process(strategy: StrategySettings, /) -> Iterator[DrafterEndpoint]:
    """A drafter that listens on this machine until the block ends.

    Raises:
        Unavailable: it did not start.
    """
    command = [sys.executable, "-m", "serve_app.benchmark.drafter_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(pickle.dumps(strategy))
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise Unavailable("the drafter to measure with ended before it listened; its error is above")
            yield msgspec.json.decode(line, type=DrafterEndpoint)
        finally:
            process.kill()


@contextmanager
def linked(endpoint: DrafterEndpoint, *, settings: LinkSettings, metrics: Metrics) -> Iterator[DrafterLinks]:
    """Links that are connected.

    Raises:
        Unavailable: the drafter let nobody in.
    """
    links = DrafterLinks(settings=settings, metrics=metrics)
    try:
        links.update([endpoint])
        patience = time.monotonic() + _CONNECT_S
        while not links.live:
            if time.monotonic() > patience:
                raise Unavailable(f"the drafter to measure with let nobody in for {_CONNECT_S:.0f} s")
            time.sleep(0.01)
        yield links
    finally:
        links.shut()
