"""What can be said against a model before anything starts, from its header and its tokenizer."""

from pathlib import Path

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.models.load import read_config
from deployments.messages.errors import ConfigError
from deployments.tokenizer.model_text import read_model_text


def check_model(path: Path, /, *, context: int) -> None:
    """Refuses at once what the replicas would refuse three times each, after Ray has started.

    Raises:
        CheckpointError: the checkpoint, its network or its tokenizer cannot be served.
        ConfigError: the model was not made for such a context.
    """
    config = read_config(open_checkpoint(path))
    if context > config.context:
        raise ConfigError(
            f"a context of {context} was asked for, but the model was made for {config.context}; lower --ctx"
        )
    read_model_text(path)
