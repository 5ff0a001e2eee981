"""Granite's four multipliers, where they are and where they are not. Its figures: `test_golden.py`."""

from pathlib import Path

import numpy as np
import pytest

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.models.granite import read_config
from deployments.messages.errors import CheckpointError
from tests.lm.models.files import changed_file
from tests.lm.models.folders import changed_folder

MULTIPLIERS = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")


def test_each_is_where_it_belongs(goldens: Path) -> None:
    for path in (goldens / "granite", goldens / "granite" / "granite.f16.gguf"):
        found = read_config(open_checkpoint(path))
        assert found.attention_scale == float(np.float32(0.09))
        assert found.embedding_scale == 3.0
        assert found.residual_scale == float(np.float32(0.4))
        assert found.logit_scale == 0.5


def test_what_is_not_said_multiplies_by_one(goldens: Path, tmp_path: Path) -> None:
    """But for attention in GGUF files, which then has the usual scale."""
    folder = changed_folder(goldens / "granite", into=tmp_path / "folder", without=MULTIPLIERS)
    file = changed_file(
        goldens / "granite" / "granite.f16.gguf",
        into=tmp_path / "plain.gguf",
        numbers=dict.fromkeys(("attention.scale", "embedding_scale", "residual_scale", "logit_scale")),
    )
    for path, scale in ((folder, 1.0), (file, 0.25)):
        found = read_config(open_checkpoint(path))
        assert found.attention_scale == scale
        assert (found.embedding_scale, found.residual_scale, found.logit_scale) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("name", MULTIPLIERS)
@pytest.mark.parametrize("value", [0.0, -1.0, 1e300])
def test_none_may_be_absurd(goldens: Path, tmp_path: Path, name: str, value: float) -> None:
    with pytest.raises(CheckpointError, match=f"{name} is "):
        read_config(open_checkpoint(changed_folder(goldens / "granite", into=tmp_path, config={name: value})))
