"""Keeps the links told of the drafters there are: asks the drafter deployment once a second, over its Serve handle."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from deployments.messages.drafting import DrafterEndpoint
from deployments.verifier.links import DrafterLinks

_log = logging.getLogger(__name__)


async def keep_discovering(
    drafter: Any, *, links: DrafterLinks, period_s: float = 1.0, patience_s: float = 2.0
) -> None:
    """Runs until cancelled. A failure leaves the links as they are: a drafter that is gone breaks its own link."""
    while True:
        try:
            async with asyncio.timeout(patience_s):
                answers = await drafter.broadcast("endpoint").results_async(return_exceptions=True)
            endpoints = _endpoints(answers)
            if endpoints:
                links.update(endpoints)
        except Exception as error:
            # Whatever Serve raises while replicas come and go: the next round asks again.
            _log.info("drafters could not be listed (%s); asking again", type(error).__name__)
        await asyncio.sleep(period_s)


def _endpoints(answers: Sequence[object]) -> list[DrafterEndpoint]:
    return [answer for answer in answers if isinstance(answer, DrafterEndpoint)]
