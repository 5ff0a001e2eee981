"""Ids back to bytes: every byte, every kind of token, and text in many scripts."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.messages.generation import TokenTable
from deployments.tokenizer.encoding import PromptEncoder
from deployments.tokenizer.table import byte_alphabet, token_table
from deployments.tokenizer.vocabulary import TokenType, Vocabulary, read_vocabulary

type WriteVocabulary = Callable[..., Path]

_TEXTS = (
    "The quick brown fox — naïve façade, 3.14 €",
    "Съешь же ещё этих мягких французских булок",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "איזה כיף לקנות סחלבים",
    "نص حكيم له سر قاطع وذو شأن عظيم",
    "یک متن فارسی با نیم‌فاصله",
    "ऋषियों को सताने वाले दुष्ट राक्षसों",
    "আমি বাংলায় গান গাই",
    "தமிழ் எழுத்துக்கள்",
    "తెలుగు లిపి",
    "ಕನ್ನಡ ಅಕ್ಷರಮಾಲೆ",
    "മലയാളം അക്ഷരം",
    "ภาษาไทยไม่มีวรรค",
    "ພາສາລາວ",
    "မြန်မာအက္ခရာ",
    "អក្សរខ្មែរ",
    "ქართული ანბანი",
    "Հայոց գրեր",
    "አማርኛ ፊደል",
    "日本語のテキスト、漢字とカタカナ",
    "我能吞下玻璃而不傷身體。",
    "키스의 고유조건은 입술끼리 만나야 하고",
    "བོད་ཡིག",
    "𐌼𐌰𐌲 𐌲𐌻𐌴𐍃 𐌺𐌰𐌽 𒀀𒈾 𓂀",
    "🙂🚀👨‍👩‍👧‍👦 🇩🇪 e\u0301 é \ufeff\u200b",
    "\t\r\n \x0b\x0c   \n\n   tabs and\u00a0spaces\u3000",
)
_CONTROLS = "".join(map(chr, [*range(32), 0x7F, *range(0x80, 0xA0)]))


def _bytes(table: TokenTable, /, ids: tuple[int, ...]) -> bytes:
    return b"".join(table.blob[table.ends[i - 1] if i else 0 : table.ends[i]] for i in ids)


def test_the_alphabet_gives_every_byte_its_own_visible_character() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet) == list(range(256))
    assert len(set(alphabet.values())) == 256
    assert (alphabet[0x20], alphabet[0x0A], alphabet[0x41], alphabet[0xAD]) == ("Ġ", "Ċ", "A", "Ń")
    assert not any(char.isspace() or ord(char) < 0x21 for char in alphabet.values())


def test_every_byte_has_its_token(golden_vocabulary: Vocabulary) -> None:
    table = token_table(golden_vocabulary, has_chat_template=True)
    singles = {_bytes(table, (i,)) for i in range(len(table.ends))}
    assert singles >= {bytes([byte]) for byte in range(256)}


def test_each_kind_of_token(write_vocabulary: WriteVocabulary) -> None:
    small = read_vocabulary(GgufFile(write_vocabulary()))
    kinds = {
        "Ġx": TokenType.NORMAL,
        "<|Ġ|>": TokenType.CONTROL,
        "Ġ Ġ": TokenType.USER_DEFINED,
        "[PAD]": TokenType.UNUSED,
        "<0x0A>": TokenType.BYTE,
        "日本": TokenType.NORMAL,
        "<unk>": TokenType.UNKNOWN,
    }
    tokens = [*small.tokens, *kinds]
    types = [*(int(kind) for kind in small.types), *(int(kind) for kind in kinds.values())]
    vocabulary = read_vocabulary(GgufFile(write_vocabulary(ggml__tokens=tokens, ggml__token_type=types)))
    table = token_table(vocabulary, has_chat_template=False)
    first = len(small.tokens)
    pieces = [_bytes(table, (i,)) for i in range(first, first + len(kinds))]
    assert pieces == [b" x", "<|Ġ|>".encode(), "Ġ Ġ".encode(), b"", b"\n", "日本".encode(), b"<unk>"]
    assert table.special_ids == {257, 258, 259, first + 1, first + 6}
    assert table.end_ids == vocabulary.end_ids
    assert not table.has_chat_template


@pytest.mark.parametrize("text", [*_TEXTS, _CONTROLS, "\n".join(_TEXTS)])
def test_round_trip(golden_vocabulary: Vocabulary, text: str) -> None:
    table = token_table(golden_vocabulary, has_chat_template=True)
    assert _bytes(table, PromptEncoder(golden_vocabulary).encode(text)) == text.encode()


def test_round_trip_of_anything(golden_vocabulary: Vocabulary) -> None:
    table = token_table(golden_vocabulary, has_chat_template=True)
    encoder = PromptEncoder(golden_vocabulary)

    @given(st.text())
    def check(text: str) -> None:
        assert _bytes(table, encoder.encode(text)) == text.encode()

    check()


def test_smollm2_round_trip_but_for_six_control_characters(smollm2_path: Path) -> None:
    vocabulary = read_vocabulary(GgufFile(smollm2_path))
    table = token_table(vocabulary, has_chat_template=True)
    encoder = PromptEncoder(vocabulary)
    for text in _TEXTS:
        assert _bytes(table, encoder.encode(text)) == text.encode()
    lost = [char for char in _CONTROLS if _bytes(table, encoder.encode(char)) != char.encode()]
    assert lost == ["\x04", "\x06", "\x13", "\x14", "\x16", "\x1d"]
