"""A drafter replica in a process of its own, for measuring with it: tells where it listens, and serves.

python -m serve_app.benchmark.drafter_process < SETTINGS

Its settings come pickled over standard input; it ends when that is closed, so that it never outlives who started it.
"""

import asyncio
import pickle
import signal
import sys

import msgspec

from deployments.drafter.deployment import DrafterServer
from deployments.lm.drafting.build import StrategySettings
from serve_app.metrics import ReplicaMetrics


async def serve_until_closed(strategy: StrategySettings, /) -> None:
    """Prints the endpoint as one line of JSON, then answers."""
    server = DrafterServer(strategy=strategy, metrics=ReplicaMetrics(), listen_host="127.0.0.1")
    print(msgspec.json.encode(await server.endpoint()).decode(), flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)


if __name__ == "__main__":
    # Ctrl-C reaches everyone at a terminal; whoever measures decides when this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(serve_until_closed(pickle.load(sys.stdin.buffer)))
