"""The llama family: SmolLM2, Llama 2 and 3; also Mistral's networks where no window narrows their sight.

Source of the architecture: Touvron et al., 2023.
"""

from deployments.lm.checkpoint.source import Checkpoint
from deployments.lm.checkpoint.weights import Weight
from deployments.lm.decoder import Decoder
from deployments.lm.kernels.choice import Kernels
from deployments.lm.models import numbers as keys
from deployments.lm.models.numbers import Numbers
from deployments.lm.models.uniform import UniformConfig, load_uniform, read_uniform, usual_layer, whole_table
from deployments.lm.quant.linear import Precision

_MISTRAL = "mistral"


def read_config(checkpoint: Checkpoint, /) -> UniformConfig:
    """The network's numbers. Raises `CheckpointError` for one that is missing, absurd or not computed here."""
    if checkpoint.architecture == _MISTRAL:
        # Hugging Face's llama has no such option, and passes it over.
        Numbers(checkpoint).refuse_options(keys.WINDOW.hf)
    return read_uniform(checkpoint, architecture="llama")


def weight_table(config: UniformConfig, /) -> dict[str, Weight]:
    """Where each weight is found."""
    return whole_table(config, layers=[usual_layer(config, is_paired=True)] * config.layers)


def load(checkpoint: Checkpoint, *, precision: Precision, kernels: Kernels) -> Decoder:
    """The network in `precision`. Raises `CheckpointError` with everything that is wrong with its tensors."""
    config = read_config(checkpoint)
    return load_uniform(checkpoint, config=config, table=weight_table(config), precision=precision, kernels=kernels)
