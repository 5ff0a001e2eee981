"""How EXAONE 4's checkpoints say which layers see a window. Its figures: `test_golden.py`."""

from pathlib import Path

import pytest

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.models.exaone4 import Exaone4Config, read_config
from deployments.messages.errors import CheckpointError
from tests.lm.models.files import changed_file
from tests.lm.models.folders import Json, changed_folder

LISTED = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 16


@pytest.fixture
def hybrid(goldens: Path) -> Path:
    return goldens / "exaone4_hybrid"


def read(path: Path) -> Exaone4Config:
    return read_config(open_checkpoint(path))


@pytest.mark.parametrize(
    ("config", "without"),
    [
        ({"sliding_window_pattern": "LLLG"}, ("layer_types",)),
        ({"sliding_window_pattern": 4}, ("layer_types",)),
        ({}, ("layer_types", "sliding_window_pattern")),
        ({"layer_types": LISTED}, ("sliding_window_pattern",)),
    ],
)
def test_layers_are_listed_or_follow_a_pattern(
    hybrid: Path, tmp_path: Path, config: dict[str, Json], without: tuple[str, ...]
) -> None:
    found = read(changed_folder(hybrid, into=tmp_path, config=config, without=without))

    assert found == read(hybrid)
    assert found.sliding == (True, True, True, False) * 16
    assert found.window == 16


def test_the_last_layer_of_a_pattern_of_letters_sees_everything(hybrid: Path, tmp_path: Path) -> None:
    config: dict[str, Json] = {"sliding_window_pattern": "GL"}
    found = read(changed_folder(hybrid, into=tmp_path, config=config, without=("layer_types",)))

    assert found.sliding == (False, True) * 31 + (False, False)


def test_gguf_files_without_a_pattern_slide_in_three_of_four(hybrid: Path, tmp_path: Path) -> None:
    path = changed_file(
        hybrid / "exaone4_hybrid.f16.gguf",
        into=tmp_path / "old.gguf",
        numbers={"attention.sliding_window_pattern": None},
    )

    assert read(path) == read(hybrid)


def test_without_a_window_no_layer_slides(goldens: Path) -> None:
    found = read(goldens / "exaone4")

    assert found.window is None
    assert not any(found.sliding)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"sliding_window": None}, "such a layer and no window"),
        ({"layer_types": ["full_attention"] * 64}, "no layer that uses it"),
        ({"layer_types": None, "sliding_window_pattern": "LLX"}, "'LLX', not a row of L and G"),
        ({"layer_types": LISTED[:-1]}, "64 layers"),
        ({"layer_types": ["chunked_attention"] * 64}, "chunked_attention"),
        ({"sliding_window": -16}, "sliding_window is -16"),
    ],
)
def test_contradictions_are_refused(hybrid: Path, tmp_path: Path, config: dict[str, Json], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        read(changed_folder(hybrid, into=tmp_path, config=config))
