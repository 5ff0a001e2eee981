"""A drafter replica in a process of its own: prints its endpoint as JSON, then serves until it is killed.

python drafter_process.py '{"max_k": 3}'
"""

import asyncio
import json
import sys

import msgspec

from deployments.drafter.deployment import DrafterServer
from deployments.lm.drafting.ngram import NgramSettings
from tests.drafter.tally import Tally


async def main() -> None:
    strategy = NgramSettings(**json.loads(sys.argv[1]))
    server = DrafterServer(strategy=strategy, metrics=Tally, listen_host="127.0.0.1")
    print(msgspec.json.encode(await server.endpoint()).decode(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
