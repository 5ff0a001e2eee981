"""SentencePiece vocabularies: texts with U+2581 for a space, and a token for each byte that nothing else stands for.

Two ways to decide what is joined. *Scores* (Llama 2, Gemma 3): of all neighbours whose joined text is a token, those
whose token has the highest score are joined first, of equal ones the leftmost (SentencePiece's `bpe_model.cc`). As
long as scores differ that is BPE with the ways to halve each token as merges, ordered by its score; the tests hold it
against the original algorithm. Where they do not differ, the order is that of transformers' converter
(`convert_slow_tokenizer.py`, `generate_merges`), which knows no places in a text. *Merges* (Gemma 4): plain BPE.
"""

from collections.abc import Mapping, Sequence

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Normalizer, Prepend, Replace
from tokenizers.normalizers import Sequence as InTurn
from tokenizers.pre_tokenizers import Split

from deployments.messages.errors import CheckpointError
from deployments.tokenizer.vocabulary import SPACE

LONGEST_TOKEN = 1024
_NEWLINES = Regex(r"[^\n]+|\n+")


def scored_words(
    ids: Mapping[str, int],
    /,
    *,
    scores: Sequence[float],
    bytes_: frozenset[str],
    fixed: Sequence[str],
    unknown: tuple[str, int] | None,
    space_first: bool,
) -> Tokenizer:
    """Text to ids by scores.

    Args:
        ids: all tokens that a text may become.
        scores: of every token, by id.
        bytes_: the texts of byte tokens, which are never joined from others.
        fixed: tokens that are always one, written as text writes them, with spaces.
        unknown: the token for characters that have no token and whose bytes have none.
        space_first: text is read as if a space stood before it, at the beginning and after each fixed token.

    Raises:
        CheckpointError: a token is too long to look for its parts, or no score says which to join first.
    """
    apart = {*fixed, *bytes_}
    pieces = {text: token_id for text, token_id in ids.items() if text not in apart}
    merges = scored_merges(pieces, scores=scores)
    vocab = {**ids, unknown[0]: unknown[1]} if unknown else dict(ids)
    bpe = BPE(vocab=vocab, merges=merges, unk_token=unknown[0] if unknown else None, fuse_unk=True, byte_fallback=True)
    return _words(bpe, normalizer=_escaping(space_first=space_first), fixed=fixed)


def escaped_words(ids: Mapping[str, int], /, *, merges: Sequence[tuple[str, str]], fixed: Sequence[str]) -> Tokenizer:
    """Text to ids by merges, each line by itself; a run of line ends that has a token is that token."""
    runs = [text for text in ids if len(text) > 1 and not text.strip("\n")]
    bpe = BPE(vocab=dict(ids), merges=list(merges), byte_fallback=True)
    tokenizer = _words(bpe, normalizer=_escaping(space_first=False), fixed=[*fixed, *runs])
    tokenizer.pre_tokenizer = Split(_NEWLINES, behavior="isolated", invert=False)
    return tokenizer


def scored_merges(pieces: Mapping[str, int], /, *, scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, the best first."""
    longest = max(map(len, pieces), default=0)
    if longest > LONGEST_TOKEN:
        raise CheckpointError(
            f"a token of {longest} characters is longer than any that is read here ({LONGEST_TOKEN}); "
            "convert the model again"
        )
    halves = [
        (-scores[token_id], -cut, cut - len(text), token_id, text[:cut], text[cut:])
        for text, token_id in pieces.items()
        for cut in range(1, len(text))
        if text[:cut] in pieces and text[cut:] in pieces
    ]
    if len({half[3] for half in halves}) > 1 and len({half[0] for half in halves}) == 1:
        raise CheckpointError(
            "all tokens have the same score (tokenizer.ggml.scores), which says nothing about what to join; "
            "convert the model again from its tokenizer.model"
        )
    halves.sort()
    return [(left, right) for *_, left, right in halves]


def _escaping(*, space_first: bool) -> Normalizer:
    return InTurn([Prepend(SPACE), Replace(" ", SPACE)] if space_first else [Replace(" ", SPACE)])


def _words(bpe: BPE, /, *, normalizer: Normalizer, fixed: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizer
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in fixed])
    return tokenizer
