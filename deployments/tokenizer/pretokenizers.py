"""The pre-tokenizers a GGUF file may name in `tokenizer.ggml.pre`: a table of what each name means.

A pre-tokenizer cuts text into the words within which BPE merges. Names and their settings are those of llama.cpp's
`src/llama-vocab.cpp`; the patterns are those of the models' own `tokenizer.json` files, run by the same regular
expression engine (llama.cpp's own has no letter case beyond ASCII, so it cuts `gpt-4o` and `tekken` otherwise). A GGUF
file names no normaliser, so none is applied, as in llama.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from deployments.messages.errors import UnknownTokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_AFTER_NUMBERS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT4O = (
    f"{_BEFORE_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_BEFORE_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}" + _AFTER_NUMBERS
)
_TEKKEN = rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+|{_BEFORE_WORD}{_UPPER}+{_LOWER}*|\p{{N}}" + _AFTER_NUMBERS


@dataclass(frozen=True, kw_only=True)
class PreTokenizerFamily:
    """What a pre-tokenizer's name decides.

    Attributes:
        pre_tokenizer: cuts text into words and writes them in the byte-level alphabet.
        ignore_merges: a word that is a token stays one, whether merges lead to it or not.
        add_bos: a prompt starts with the beginning-of-text token unless the file says otherwise.
    """

    pre_tokenizer: PreTokenizer
    ignore_merges: bool = False
    add_bos: bool = False


def family_of(name: str, /) -> PreTokenizerFamily:
    """Raises `UnknownTokenizer` for a name that is not in the table; none is ever guessed."""
    family = _FAMILIES.get(name)
    if family is None:
        known = ", ".join(sorted(_FAMILIES))
        raise UnknownTokenizer(
            f"pre-tokenizer '{name}' (tokenizer.ggml.pre) is not known here; use a model with one of: {known}"
        )
    return family


def _by_pattern(pattern: str, /) -> PreTokenizer:
    words = Split(Regex(pattern), behavior="isolated", invert=False)
    return Sequence([words, ByteLevel(add_prefix_space=False, use_regex=False)])


def _families() -> Mapping[str, PreTokenizerFamily]:
    gpt2 = PreTokenizerFamily(pre_tokenizer=ByteLevel(add_prefix_space=False, use_regex=True))
    single_digits = PreTokenizerFamily(
        pre_tokenizer=Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])
    )
    llama3 = PreTokenizerFamily(pre_tokenizer=_by_pattern(_LLAMA3), ignore_merges=True, add_bos=True)
    llama3_merges = PreTokenizerFamily(pre_tokenizer=_by_pattern(_LLAMA3))
    qwen2 = PreTokenizerFamily(pre_tokenizer=_by_pattern(_QWEN2))
    qwen35 = PreTokenizerFamily(pre_tokenizer=_by_pattern(_QWEN35))
    gpt4o = PreTokenizerFamily(pre_tokenizer=_by_pattern(_GPT4O))
    tekken = PreTokenizerFamily(pre_tokenizer=_by_pattern(_TEKKEN), ignore_merges=True, add_bos=True)
    names = {
        "gpt-2 phi-2 mpt olmo jais exaone4 trillion granite-docling gigachat mellum a.x-4.0": gpt2,
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": single_digits,
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2": llama3,
        "dbrx smaug-bpe": llama3_merges,
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": qwen2,
        "qwen35": qwen35,
        "gpt-4o llama4 kanana2 talkie": gpt4o,
        "tekken": tekken,
    }
    return MappingProxyType({name: family for group, family in names.items() for name in group.split()})


_FAMILIES = _families()
