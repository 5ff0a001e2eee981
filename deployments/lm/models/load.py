"""From a file to a network: the one place that looks at an architecture's name."""

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.lm.kernels.choice import Kernels
from deployments.lm.models.llama import params as llama
from deployments.lm.models.llama.modeling import Llama
from deployments.lm.quant.linear import Precision
from deployments.messages.errors import CheckpointError

_KNOWN = (llama.ARCHITECTURE,)


def load_network(file: GgufFile, *, precision: Precision, kernels: Kernels = Kernels.XLA) -> Llama:
    """Raises `CheckpointError` for an architecture this version does not know, and for a broken file."""
    architecture = file.require("general.architecture", str)
    if architecture != llama.ARCHITECTURE:
        raise CheckpointError(f"{file.path.name} is a '{architecture}' model; this version runs: {', '.join(_KNOWN)}")
    return llama.load_llama(file, precision=precision, kernels=kernels)
