"""The sizes a window is compiled for, and which one a step takes."""

from dataclasses import dataclass

from deployments.lm.attention import PAIR, TILE_ROWS
from deployments.messages.errors import ConfigError
from deployments.verifier.window import Rung

SMALLEST_ROWS = 8


def build_rungs(rows: tuple[int, ...], *, slots: int) -> tuple[Rung, ...]:
    """The rungs for these row counts, each with as many tiles as can occur in it.

    Raises:
        ConfigError: a row count below 8, where sums take another order, or not a multiple of a tile.
    """
    if not rows or sorted(set(rows)) != list(rows) or min(rows) < SMALLEST_ROWS or any(r % TILE_ROWS for r in rows):
        raise ConfigError(
            f"ladder {list(rows)} must rise from at least {SMALLEST_ROWS} rows in multiples of {TILE_ROWS}"
        )
    return tuple(Rung(rows=count, tiles=most_tiles(count, slots=slots)) for count in rows)


def most_tiles(rows: int, *, slots: int) -> int:
    """The most tiles `rows` rows of `slots` slots can form: every slot has one, the rest fill whole ones.

    Rounded up to whole pairs; tiles that stay empty cost nothing.
    """
    tiles = rows if rows <= slots else slots + (rows - slots) // TILE_ROWS
    return -(-tiles // PAIR) * PAIR


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """The rungs that may be used, smallest first, and the sizes of the draw."""

    rungs: tuple[Rung, ...]
    emits: tuple[int, ...]

    def rung_for(self, *, rows: int, tiles: int) -> Rung:
        """The cheapest rung that holds a window. The scheduler never plans one that none holds."""
        return next(rung for rung in self.rungs if rung.holds(rows=rows, tiles=tiles))

    def emits_for(self, count: int, /) -> int:
        """The smallest draw for `count` rows."""
        return next(size for size in self.emits if size >= count)

    @property
    def needed_emits(self) -> tuple[int, ...]:
        """The sizes of the draw that windows of the smallest rung take."""
        smaller = [size for size in self.emits if size < self.rungs[0].rows]
        return self.emits[: len(smaller) + 1]

    @property
    def widest(self) -> Rung:
        return self.rungs[-1]

    def only(self, rung: Rung, /) -> "Ladder":
        """A ladder that always takes `rung`; for proofs."""
        return Ladder(rungs=(rung,), emits=self.emits)

    def without(self, refused: frozenset[Rung], /) -> "Ladder":
        """The ladder without some rungs."""
        return Ladder(rungs=tuple(rung for rung in self.rungs if rung not in refused), emits=self.emits)


def build_ladder(rows: tuple[int, ...], *, slots: int, draft_k: int, draft_rows: int | None = None) -> Ladder:
    """The ladder of a verifier with `slots` slots, drafts of at most `draft_k`, and `draft_rows` of all together."""
    rungs = build_rungs(rows, slots=slots)
    if rungs[-1].rows < slots:
        raise ConfigError(
            f"the widest window has {rungs[-1].rows} rows, fewer than the {slots} slots; widen the ladder"
        )
    drafts = slots * draft_k if draft_rows is None else min(slots * draft_k, draft_rows)
    most = min(slots + drafts, rungs[-1].rows)
    emits = [SMALLEST_ROWS]
    while emits[-1] < most:
        emits.append(2 * emits[-1])
    return Ladder(rungs=rungs, emits=tuple(emits))
