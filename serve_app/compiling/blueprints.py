"""From a model and what is asked for to the blueprint of its programs on a slice of chips; no weight is read."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.checkpoint.shape_file import SUFFIXES, ShapeFile
from deployments.lm.checkpoint.source import Checkpoint
from deployments.lm.drafting.ngram import NgramSettings
from deployments.lm.kernels.choice import Kernels
from deployments.lm.mesh import make_mesh
from deployments.lm.models.load import outline_network
from deployments.lm.quant.linear import Precision
from deployments.lm.splitting import split_network, splits
from deployments.lm.topologies import absent_devices
from deployments.messages.errors import ConfigError
from deployments.verifier.blueprint import Blueprint
from deployments.verifier.calls import ChipSettings
from deployments.verifier.sizing import ModelSettings, fitted, sizes_for
from serve_app.compiling.chips import Slice


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What programs are compiled for, as in `ModelSettings`; `drafts_on_chip` adds calls of several windows."""

    precision: Precision
    slots: int
    context: int
    page_size: int
    draft_k: int
    ladder: tuple[int, ...]
    drafts_on_chip: bool = False

    @property
    def chip(self) -> ChipSettings | None:
        """The drafter on the devices."""
        return ChipSettings(drafter=NgramSettings(max_k=self.draft_k)) if self.drafts_on_chip else None


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model's programs on a slice, before they are compiled.

    Attributes:
        longest: the longest context that it was made for.
        splits: whether several devices could share it.
    """

    name: str
    architecture: str
    layers: int
    longest: int
    splits: bool
    wanted: Wanted
    on: Slice
    blueprint: Blueprint


def check_compiler() -> None:
    """Raises `ConfigError` where there is nothing that compiles for TPUs."""
    if find_spec("libtpu") is None:
        raise ConfigError("compiling for TPUs needs libtpu, which is not installed; pip install 'outrider[tpu]'")


def open_model(path: Path, /) -> Checkpoint:
    """A model, or the shape of one. Raises `CheckpointError`."""
    return ShapeFile(path) if path.suffix.lower() in SUFFIXES else open_checkpoint(path)


def subject_of(checkpoint: Checkpoint, /, *, wanted: Wanted, on: Slice) -> Subject:
    """The programs of a model on a slice.

    Raises:
        CheckpointError, ConfigError: it is no model that runs here, or not on so many devices, or not as is wanted.
    """
    network = outline_network(checkpoint, precision=wanted.precision, kernels=Kernels.PALLAS)
    layers, can_split = len(network.blocks), splits(network)
    if on.devices > 1:
        network = split_network(network, shards=on.devices, place=lambda leaf, _: leaf)
    settings = fitted(
        ModelSettings(
            model_path="",
            precision=wanted.precision,
            kernels=Kernels.PALLAS,
            slots=wanted.slots,
            context=wanted.context,
            page_size=wanted.page_size,
            draft_k=wanted.draft_k,
            ladder=wanted.ladder,
            chip=wanted.chip,
        ),
        config=network.config,
    )
    mesh = make_mesh(absent_devices(on.topology))
    blueprint = Blueprint(network, sizes=sizes_for(settings, config=network.config), mesh=mesh)
    return Subject(
        name=checkpoint.name,
        architecture=checkpoint.architecture,
        layers=layers,
        longest=network.config.context,
        splits=can_split,
        wanted=wanted,
        on=on,
        blueprint=blueprint,
    )
