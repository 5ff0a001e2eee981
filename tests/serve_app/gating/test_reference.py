"""The reference page names everything there is, and its example can be read."""

from enum import StrEnum
from pathlib import Path

import msgspec
import pytest

from deployments.messages.generation import Decline
from serve_app.gating import evidence, keys, policy, records, store
from serve_app.gating.encoding import decode_gates
from serve_app.gating.policy import Candidate, decide

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
PAGE = (REFERENCE / "gates.md").read_text()
METRICS = REFERENCE / "metrics.md"
MODULES = (keys, evidence, records, store, policy)
STRUCTS: set[type[msgspec.Struct]] = {
    value
    for module in MODULES
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, msgspec.Struct) and value is not msgspec.Struct
}
ENUMS: set[type[StrEnum]] = {
    value
    for module in (records, store)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, StrEnum) and value is not StrEnum
}


@pytest.mark.parametrize("struct", sorted(STRUCTS, key=repr))
def test_every_field_is_documented(struct: type[msgspec.Struct]) -> None:
    missing = {name for name in struct.__struct_fields__ if f"`{name}`" not in PAGE}
    assert not missing - {"key", "evidence"}


@pytest.mark.parametrize("enum", [*sorted(ENUMS, key=repr), policy.State])
def test_every_word_is_documented(enum: type[StrEnum]) -> None:
    assert not {word.value for word in enum if f"`{word.value}`" not in PAGE}


def test_every_count_is_documented() -> None:
    assert not {name for name in store.StoreStatus.__dataclass_fields__ if f"`{name}`" not in PAGE} - {
        "state",
        "detail",
    }


def test_the_example_is_what_it_says() -> None:
    gates = decode_gates(PAGE.partition("```yaml\n")[2].partition("```")[0].encode())
    (profit,) = gates.profit
    assert gates.exactness_for(profit.key.program) is not None
    found = decide(gates, candidates=[Candidate(kind="ngram", key=profit.key)], slots=8)
    assert (found.kind, found.k_by_active_slots[:4], found.stop_above) == ("ngram", (7, 5, 0, 0), 2)


def test_every_reason_of_a_window_without_drafts_is_documented() -> None:
    page = METRICS.read_text()
    assert not {decline.value for decline in Decline if f"`{decline.value}`" not in page}
