"""Keys: any part that differs makes another record, and is named."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serve_app.gating.keys import ChipKey, DrafterKey, ExactnessKey, ProfitKey, differences, record_id
from tests.serve_app.gating.making import KEY, key, profit_key

CHANGED: dict[str, Any] = {
    "chip": ChipKey(kind="TPU v6e"),
    "devices": 4,
    "topology": "2x2",
    "model": "ac" * 32,
    "architecture": "qwen3",
    "precision": "bf16",
    "kernels": "xla",
    "page_size": 32,
    "context": 4096,
    "cache_pages": 512,
    "ladder": (8, 16),
    "slots": 16,
    "draft_k": 3,
    "draft_rows": 16,
    "jax": "0.12.1",
    "jaxlib": "0.12.1",
    "libtpu": "0.0.30",
    "flags": ("--xla_cpu_max_isa=AVX2",),
    "programs": "ce" * 32,
}


def test_every_part_counts() -> None:
    assert set(CHANGED) == set(ExactnessKey.__struct_fields__)
    others = [key(**{name: value}) for name, value in CHANGED.items()]
    assert len({record_id(KEY), *map(record_id, others)}) == len(CHANGED) + 1
    for name, other in zip(CHANGED, others, strict=True):
        found = differences(KEY, other=other)
        assert found
        assert all(difference.startswith(name) for difference in found)


def test_every_part_of_a_pairing_counts() -> None:
    pairing = profit_key()
    others = [
        msgspec.structs.replace(pairing, k_max=3),
        msgspec.structs.replace(pairing, program=key(slots=4)),
        *(
            msgspec.structs.replace(pairing, drafter=msgspec.structs.replace(pairing.drafter, **{name: value}))
            for name, value in {"kind": "mtp", "fingerprint": "aa" * 32, "placement": "chip"}.items()
        ),
    ]
    assert set(ProfitKey.__struct_fields__) == {"program", "drafter", "k_max"}
    assert set(DrafterKey.__struct_fields__) == {"kind", "fingerprint", "placement"}
    assert len({record_id(pairing), *map(record_id, others)}) == len(others) + 1
    assert all(differences(pairing, other=other) for other in others)


def test_differences_say_what_was_and_what_is() -> None:
    here = key(jax="0.12.1", programs="ce" * 32, libtpu="0.0.30", ladder=(8, 16))
    assert differences(KEY, other=here) == (
        "ladder [8 16 32 64 128] != [8 16]",
        "jax 0.12.0 != 0.12.1",
        "libtpu (none) != 0.0.30",
        f"programs {'cd' * 6} != {'ce' * 6}",
    )
    assert differences(profit_key(program=KEY), other=profit_key("mtp", program=here))[-2:] == (
        "drafter.kind ngram != mtp",
        f"programs {'cd' * 6} != {'ce' * 6}",
    )
    assert differences(KEY, other=key()) == ()


def test_an_id_is_the_same_in_every_process() -> None:
    program = "from tests.serve_app.gating.making import *; from serve_app.gating.keys import record_id as i; "
    program += "print(i(KEY), i(profit_key()))"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [record_id(KEY), record_id(profit_key())]


def test_ids_that_were_given_stay() -> None:
    """Records in stores carry these; a change of the canonical encoding would orphan them all."""
    assert (record_id(KEY), record_id(profit_key())) == ("e2ccebef6706c789", "ff3e1bb7d3a3912a")


@pytest.mark.parametrize(
    "wrong", [{"slots": 0}, {"model": "SmolLM2"}, {"jax": ""}, {"ladder": [0]}, {"colour": 1}, {"slots": True}]
)
def test_keys_that_make_no_sense_are_not_read(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**msgspec.to_builtins(KEY), **wrong}, ExactnessKey)
