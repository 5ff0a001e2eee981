"""What a model's files say about text, wherever they say it: a GGUF file's metadata, or the files of a folder."""

from dataclasses import dataclass
from pathlib import Path

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.checkpoint.source import Format
from deployments.tokenizer.folder import TokenizerFolder
from deployments.tokenizer.gguf_vocabulary import read_gguf_vocabulary
from deployments.tokenizer.template import ChatTemplate
from deployments.tokenizer.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class ModelText:
    """A model's vocabulary, and its chat template if it has one."""

    vocabulary: Vocabulary
    template: ChatTemplate | None


def read_model_text(path: Path, /) -> ModelText:
    """Reads whichever of the two the path leads to.

    Raises:
        CheckpointError: the files are missing or broken; `UnknownTokenizer` and `UnknownTemplate` say what it is that
            this version does not know.
    """
    checkpoint = open_checkpoint(path)
    if checkpoint.format is Format.GGUF:
        vocabulary = read_gguf_vocabulary(checkpoint)
        return _model_text(vocabulary, source=checkpoint.get("tokenizer.chat_template", str))
    folder = TokenizerFolder(path if path.is_dir() else path.parent)
    return _model_text(folder.vocabulary(), source=folder.template())


def _model_text(vocabulary: Vocabulary, /, *, source: str | None) -> ModelText:
    bos, eos = vocabulary.text_of(vocabulary.bos_id), vocabulary.text_of(vocabulary.eos_id)
    return ModelText(
        vocabulary=vocabulary,
        template=None if source is None else ChatTemplate(source, bos_text=bos, eos_text=eos),
    )
