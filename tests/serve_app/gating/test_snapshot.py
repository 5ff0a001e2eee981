"""Snapshots: what applies, whose word counts, and what changed."""

from serve_app.gating.records import Forced, Record, Setting
from serve_app.gating.snapshot import Snapshot, changes
from tests.serve_app.gating.making import exactness, forced, key, profit, profit_key


def test_only_the_record_with_the_same_key_applies() -> None:
    gates = Snapshot.of([exactness(), exactness(key(slots=4)), profit()], revision=1)
    assert gates.exactness_for(key()) == exactness()
    assert gates.exactness_for(key(jax="0.12.1")) is None
    assert gates.profit_for(profit_key()) == profit()
    assert gates.profit_for(profit_key(k_max=3)) is None


def test_the_order_of_arrival_counts_for_nothing() -> None:
    records: list[Record | Forced] = [exactness(), exactness(key(slots=4)), profit(), forced(), forced(kind="mtp")]
    assert Snapshot.of(records, revision=1) == Snapshot.of(records[::-1], revision=1)


def test_off_wins_and_then_the_latest() -> None:
    off, on = forced(Setting.OFF, hour=9, chip=key().chip.kind), forced(Setting.ON, hour=10, kind="ngram")
    everything = forced(Setting.OFF, hour=11)
    assert Snapshot.of([on], revision=1).forced_for(profit_key()) == on
    assert Snapshot.of([on], revision=1).forced_for(profit_key("mtp")) is None
    assert Snapshot.of([on, off], revision=1).forced_for(profit_key()) == off
    assert Snapshot.of([everything, on, off], revision=1).forced_for(profit_key()) == everything


def test_the_nearest_record_says_what_is_in_its_way() -> None:
    gates = Snapshot.of(
        [profit(profit_key(program=key(jax="0.11.0", slots=4))), profit(profit_key(program=key(jax="0.11.1")))],
        revision=1,
    )
    assert gates.nearest(profit_key()) == ("jax 0.11.1 != 0.12.0",)
    assert gates.nearest(profit_key("mtp")) is None


def test_changes_are_said_one_by_one() -> None:
    old = Snapshot.of([exactness(), profit(), forced(kind="ngram")], revision=1)
    new = Snapshot.of([exactness(is_exact=False), profit(ratios={1: 2.0}), forced(Setting.ON)], revision=2)
    chip = key().chip.kind
    assert sorted(changes(old, new=new)) == sorted(
        [
            f"exactness on {chip} {exactness().id}: pass -> fail (inexact)",
            f"profit of ngram on {chip} {profit().id} measured again: still pass",
            "kind ngram: no longer forced off by alice: the chip is hot",
            "everything: forced on by alice: the chip is hot",
        ]
    )
    assert changes(Snapshot(), new=old)[0] == f"exactness on {chip} {exactness().id} added: pass"
    assert changes(old, new=Snapshot())[0] == f"exactness on {chip} {exactness().id} removed"
    assert changes(old, new=Snapshot.of(old.records, revision=9)) == ()
