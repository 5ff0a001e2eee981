"""All that a store holds at one moment, how it is asked, and what changed from one to the next. Frozen."""

from collections.abc import Iterable
from dataclasses import dataclass

from serve_app.gating.keys import ExactnessKey, ProfitKey, differences
from serve_app.gating.records import ExactnessRecord, Forced, ProfitRecord, Record, Setting


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The gates.

    Attributes:
        revision: rises with every write; not with an edit by hand.
        exactness, profit, forced: each once, in the order of their ids.
    """

    revision: int = 0
    exactness: tuple[ExactnessRecord, ...] = ()
    profit: tuple[ProfitRecord, ...] = ()
    forced: tuple[Forced, ...] = ()

    @staticmethod
    def of(records: Iterable[Record | Forced], /, *, revision: int) -> "Snapshot":
        """All of `records`; of two with one id, the later."""
        last = {(type(record), record.id): record for record in records}
        ordered = [record for _, record in sorted(last.items(), key=lambda item: item[0][1])]
        return Snapshot(
            revision=revision,
            exactness=tuple(record for record in ordered if isinstance(record, ExactnessRecord)),
            profit=tuple(record for record in ordered if isinstance(record, ProfitRecord)),
            forced=tuple(record for record in ordered if isinstance(record, Forced)),
        )

    @property
    def records(self) -> tuple[Record | Forced, ...]:
        return (*self.exactness, *self.profit, *self.forced)

    def with_record(self, record: Record | Forced, /, *, revision: int) -> "Snapshot":
        """This, with one record put in place of the one with its id."""
        return Snapshot.of((*self.records, record), revision=revision)

    def without(self, record: str, /, *, revision: int) -> "Snapshot":
        """This, without what has this id."""
        return Snapshot.of((kept for kept in self.records if kept.id != record), revision=revision)

    def exactness_for(self, key: ExactnessKey, /) -> ExactnessRecord | None:
        """The record that applies to this program."""
        return next((record for record in self.exactness if record.key == key), None)

    def profit_for(self, key: ProfitKey, /) -> ProfitRecord | None:
        """The record that applies to this pairing."""
        return next((record for record in self.profit if record.key == key), None)

    def forced_for(self, key: ProfitKey, /) -> Forced | None:
        """What an operator forced for this pairing. Of several, an `off` wins; of several like it, the latest."""
        meant = [forced for forced in self.forced if forced.target.holds(key)]
        return max(meant, key=lambda forced: (forced.setting is Setting.OFF, forced.at), default=None)

    def nearest(self, key: ProfitKey, /) -> tuple[str, ...] | None:
        """What keeps the nearest record of this kind of drafter from applying; `None` if there is no record of it."""
        misses = [
            differences(record.key, other=key)
            for record in self.profit
            if record.key != key and record.key.drafter.kind == key.drafter.kind
        ]
        return min(misses, key=len, default=None)


def changes(old: Snapshot, /, *, new: Snapshot) -> tuple[str, ...]:
    """What changed, a sentence for each; none when only the order or the layout of a file did."""
    before = {record.id: record for record in old.records}
    after = {record.id: record for record in new.records}
    found = [_change(before.get(name), new=after.get(name)) for name in {**before, **after}]
    return tuple(sentence for sentence in found if sentence)


def _change(old: Record | Forced | None, *, new: Record | Forced | None) -> str:
    if old == new:
        return ""
    named = new or old
    assert named is not None
    if isinstance(named, Forced):
        return f"{named.target}: {named if new is not None else 'no longer ' + str(old)}"
    what = f"{_title(named)} {named.id}"
    if isinstance(new, Forced) or new is None:
        return f"{what} removed"
    if isinstance(old, Forced) or old is None:
        return f"{what} added: {new.verdict_text}"
    if old.verdict_text == new.verdict_text:
        return f"{what} measured again: still {new.verdict_text}"
    return f"{what}: {old.verdict_text} -> {new.verdict_text}"


def _title(record: Record) -> str:
    if isinstance(record, ProfitRecord):
        return f"profit of {record.key.drafter.kind} on {record.key.program.chip.kind}"
    return f"exactness on {record.key.chip.kind}"
