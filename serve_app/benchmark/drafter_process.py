"""A drafter replica in a process of its own, for measuring the exchange with it: tells where it listens, and serves.

python -m serve_app.benchmark.drafter_process MAX_DRAFT
"""

import asyncio
import sys

import msgspec

from deployments.drafter.deployment import DrafterServer
from deployments.lm.drafting.ngram import NgramSettings
from serve_app.metrics import ReplicaMetrics


async def serve_until_killed(max_k: int, /) -> None:
    """Prints the endpoint as one line of JSON, then answers."""
    server = DrafterServer(strategy=NgramSettings(max_k=max_k), metrics=ReplicaMetrics(), listen_host="127.0.0.1")
    print(msgspec.json.encode(await server.endpoint()).decode(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve_until_killed(int(sys.argv[1])))
