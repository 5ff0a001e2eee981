"""Names and numbers that only EXAONE 3's configurations have. Its figures: `test_golden.py`."""

from pathlib import Path

import pytest

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.checkpoint.source import Format
from deployments.lm.models import exaone
from deployments.lm.models.load import read_config
from deployments.messages.errors import CheckpointError
from tests.lm.models.folders import changed_folder


@pytest.mark.parametrize("name", ["num_layers", "layer_norm_epsilon"])
def test_a_missing_number_is_named(goldens: Path, tmp_path: Path, name: str) -> None:
    folder = changed_folder(goldens / "exaone", into=tmp_path, without=(name,))

    with pytest.raises(CheckpointError, match=f"no metadata '{name}'"):
        read_config(open_checkpoint(folder))


def test_every_weight_has_its_own_name(goldens: Path) -> None:
    checkpoint = open_checkpoint(goldens / "exaone")
    names = [
        weight.source(Format.SAFETENSORS) for weight in exaone.weight_table(exaone.read_config(checkpoint)).values()
    ]

    assert sorted(name for name in names if name) == sorted(checkpoint.shapes)
    assert len(set(names)) == len(names)
