"""Which heads each device has when attention is split: every device as many, whatever their number is.

Where key heads do not divide, some places stay empty (their weights are zero), or a key head is on several devices,
each with some of the queries that read it. Knows numbers, not weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

NOTHING = -1
"""The index of what is not there, and comes out as zero."""

type Places = Int[np.ndarray, " _"]


@dataclass(frozen=True, kw_only=True)
class HeadPlan:
    """What stands at each place, device by device.

    Attributes:
        shards: how many devices.
        kv_heads: on each device, and
        group: queries of each.
        queries, keys: numbers of the whole network's heads, or `NOTHING`.
    """

    shards: int
    kv_heads: int
    group: int
    queries: Places
    keys: Places

    @property
    def heads(self) -> int:
        """Of queries, on each device."""
        return self.kv_heads * self.group

    @property
    def is_ragged(self) -> bool:
        """Whether some place without a query reads a real key: what it gives must be put out of sight."""
        reads = np.repeat(self.keys, self.group)
        return bool(np.any((self.queries == NOTHING) & (reads != NOTHING)))


def plan_heads(*, heads: int, kv_heads: int, shards: int) -> HeadPlan:
    """The plan with the fewest weights and the least cache on each device."""
    group = heads // kv_heads

    def cost(copies: int) -> tuple[int, int]:
        each = -(-kv_heads * copies // shards)
        return each * (-(-group // copies) + 1), each

    copies = min(range(1, group + 1), key=cost)
    each, own = -(-kv_heads * copies // shards), -(-group // copies)
    keys = np.full(shards * each, NOTHING)
    queries = np.full((shards * each, own), NOTHING)
    for head in range(kv_heads):
        for copy in range(copies):
            place = head * copies + copy
            keys[place] = head
            read = np.arange(copy * own, min((copy + 1) * own, group))
            queries[place, : len(read)] = head * group + read
    return HeadPlan(shards=shards, kv_heads=each, group=own, queries=queries.reshape(-1), keys=keys)


def spread(places: Places, /, *, size: int, first: int = 0) -> Places:
    """From numbers of heads to numbers of their elements.

    Args:
        first: the number of the first head's first element.
    """
    elements = first + places[:, None] * size + np.arange(size)
    return np.where(places[:, None] == NOTHING, NOTHING, elements).reshape(-1)


def even(count: int, /, *, shards: int, multiple: int) -> Places:
    """So many elements in order, filled up so that each device has as many, a multiple of `multiple`."""
    whole = -(-count // (shards * multiple)) * shards * multiple
    return np.where(np.arange(whole) < count, np.arange(whole), NOTHING)


def device_major(parts: Sequence[Places], /, *, shards: int) -> Places:
    """Each device's share of every part, one below the other, device by device."""
    return np.concatenate([part.reshape(shards, -1) for part in parts], axis=1).reshape(-1)
