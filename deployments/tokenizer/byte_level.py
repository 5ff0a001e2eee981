"""Byte-level BPE: every byte is a character of GPT-2's alphabet, and merges join characters within words.

The alphabet is that of `bytes_to_unicode` in GPT-2's `encoder.py`.
"""

from collections.abc import Mapping, Sequence

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from deployments.tokenizer.pretokenizers import PreTokenizerFamily


def byte_level_words(
    ids: Mapping[str, int],
    /,
    *,
    merges: Sequence[tuple[str, str]],
    family: PreTokenizerFamily,
    fixed: Sequence[str],
) -> Tokenizer:
    """Text to ids.

    Args:
        ids: all tokens that a text may become.
        fixed: those of them that are always one token.
    """
    bpe = BPE(vocab=dict(ids), merges=list(merges), ignore_merges=family.ignore_merges)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = family.pre_tokenizer
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in fixed])
    return tokenizer


def byte_alphabet() -> dict[int, str]:
    """Byte to character. Printable bytes of Latin-1 stand for themselves, the others for U+0100 onwards in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
