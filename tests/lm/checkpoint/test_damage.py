"""Damage at random: whatever the bytes are, a model is read or refused with a sentence, and takes little memory."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, takewhile
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.checkpoint.source import Checkpoint
from deployments.messages.errors import CheckpointError
from tests.lm.checkpoint.making import CONFIG, one_tensor, peak, write_folder
from tests.lm.checkpoint.test_splits import write_set

MOST_BYTES = 4 * 2**20
EXTREMES = (0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**60, 2**63 - 1, 2**63, 2**64 - 1)
PIECES = (b"[", b"{", b"}", b'"', b"\\u0000", b"-1", b"NaN", b"1e999", b"null", b"F64", b"\xff", b"0" * 50, b"9" * 19)


def damaged(data: bytes, *, rng: np.random.Generator) -> bytes:
    """One to four changes of different kinds."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        place = int(rng.integers(len(changed) + 1))
        kind = rng.integers(7)
        if kind == 0:
            changed[place : place + 1] = rng.bytes(1)
        elif kind == 1:
            del changed[place:]
        elif kind == 2:
            del changed[place : place + int(rng.integers(1, 40))]
        elif kind == 3:
            size = int(rng.choice([1, 2, 4, 8]))
            value = EXTREMES[rng.integers(len(EXTREMES))] % 2 ** (8 * size)
            changed[place : place + size] = value.to_bytes(size, "little")
        elif kind == 4:
            end = place + int(rng.integers(1, 200))
            changed[place:place] = changed[place:end]
        elif kind == 5:
            piece = PIECES[rng.integers(len(PIECES))]
            changed[place : place + len(piece) * int(rng.integers(2))] = piece
        else:
            changed[place:place] = rng.bytes(int(rng.integers(1, 300)))
    return bytes(changed)


def said(action: Callable[[], object]) -> str:
    """What it was refused with; nothing when it was done."""
    try:
        action()
    except CheckpointError as error:
        return str(error)
    return ""


def uses(checkpoint: Checkpoint) -> Iterator[Callable[[], object]]:
    """Everything that a model's reader might ask for."""
    yield lambda: checkpoint.architecture
    for key in checkpoint.metadata_keys:
        yield from (partial(checkpoint.get, key, kind) for kind in (str, int, float, bool))
        yield partial(checkpoint.get, key, list)
    for name in checkpoint.shapes:
        yield partial(checkpoint.tensor, name)
        yield partial(checkpoint.tensor, name, part=slice(1, 3))


def outcome(path: Path) -> bool:
    """Whether it was opened; anything but that and a sentence is raised."""
    opened: list[Checkpoint] = []
    with peak() as allocated:
        sentences = [said(lambda: opened.append(open_checkpoint(path)))]
        sentences += [said(use) for checkpoint in opened for use in uses(checkpoint)]
    assert allocated.bytes < MOST_BYTES
    assert not any("\n" in sentence or len(sentence) > 2000 for sentence in sentences)
    return bool(opened)


def write_models(folder: Path, *, small: bytes) -> list[tuple[Path, Path]]:
    """Small models of every kind: a file of each to damage, and what to open."""
    (folder / "small.gguf").write_bytes(small)
    parts = write_set(folder / "set")
    tensors = {"a.weight": np.ones((4, 6), ml_dtypes.bfloat16), "b.bias": np.arange(5.0), "c": np.arange(3)}
    config = CONFIG | {"rope_scaling": {"factor": 8.0}, "text_config": {"layer_types": ["full"], "eps": 1e-6}}
    model = write_folder(folder / "model", tensors=tensors, config=config)
    shards = folder / "shards"
    for number in (1, 2):
        name = f"model-0000{number}-of-00002.safetensors"
        write_folder(shards, tensors={f"t{number}": np.ones((2, 2), np.float32)}, name=name)
    owners = {f"t{number}": f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}
    (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": owners}))
    return [
        (folder / "small.gguf", folder / "small.gguf"),
        (parts[0], parts[0]),
        (parts[1], parts[0]),
        (model / "model.safetensors", model),
        (model / "config.json", model),
        (shards / "model.safetensors.index.json", shards),
        (shards / "model-00002-of-00002.safetensors", shards),
    ]


def assault(folder: Path, *, small: bytes, seeds: Iterable[int]) -> tuple[int, int]:
    """Damages one file after the other; how many models were opened and refused."""
    models = [(file, path, file.read_bytes()) for file, path in write_models(folder, small=small)]
    assert all(outcome(path) for _, path, _ in models)
    counts = [0, 0]
    for seed in seeds:
        file, path, whole = models[seed % len(models)]
        file.write_bytes(damaged(whole, rng=np.random.default_rng(seed)))
        try:
            counts[outcome(path)] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}, {file.name}: {file.read_bytes()!r}")
            raise
        file.write_bytes(whole)
    return counts[1], counts[0]


def test_random_damage_is_read_or_refused(tmp_path: Path, small: bytes) -> None:
    opened, refused = assault(tmp_path, small=small, seeds=range(100))

    assert opened > 10
    assert refused > 50


@pytest.mark.slow
def test_much_random_damage_is_read_or_refused(tmp_path: Path, small: bytes) -> None:
    """The fuzz run: goes on from where the short one ends for as long as there is time."""
    end = time.monotonic() + 25
    seeds = takewhile(lambda _: time.monotonic() < end, count(100))
    opened, refused = assault(tmp_path, small=small, seeds=seeds)

    assert opened > 50
    assert refused > 300


READ_WITH_LITTLE = """
import resource, sys
from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.messages.errors import CheckpointError
checkpoint = open_checkpoint(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30))
try:
    checkpoint.tensor("t")
except CheckpointError as error:
    print(error)
"""


def test_a_tensor_beyond_the_memory_is_one_sentence(tmp_path: Path) -> None:
    """8 GiB as float32, in a file that is nearly all hole."""
    path = tmp_path / "large.gguf"
    path.write_bytes(one_tensor(shape=(2**16, 2**15), kind=gguf.GGMLQuantizationType.Q4_0))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + 2**31 // 32 * 18)
    command = [sys.executable, "-c", READ_WITH_LITTLE, str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]).stdout

    assert said == ("large.gguf: there is no memory for tensor t of shape (65536, 32768); use a smaller model\n")
