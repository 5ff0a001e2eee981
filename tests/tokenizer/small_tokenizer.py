"""A small `tokenizer.json`, written to order."""

import json
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

from deployments.tokenizer.tokenizer_json import Named, read_tokenizer_json
from deployments.tokenizer.vocabulary import Vocabulary

type Change = Callable[[dict[str, Any]], None]

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TOKENS = ["<unk>", "<s>", "</s>", *_BYTES, "▁", "a", "b", "▁a", "ab", "▁ab", "<", "s", ">"]


def small_file(change: Change | None = None, /) -> dict[str, Any]:
    """The file of a Llama of the first kind: SentencePiece texts, bytes, a space put before each stretch of text."""

    def added(content: str, token_id: int, *, special: bool) -> dict[str, Any]:
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        return {"id": token_id, "content": content, "special": special, **flags}

    file: dict[str, Any] = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [
            added("<unk>", 0, special=True),
            added("<s>", 1, special=True),
            added("</s>", 2, special=True),
            added("<|user|>", 300, special=True),
            added("<think>", 301, special=False),
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": 0.5,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {text: index for index, text in enumerate(TOKENS)} | {"<|user|>": 300, "<think>": 301},
            "merges": ["▁ a", "▁a b", "a b"],
        },
    }
    if change is not None:
        change(file)
    return file


def read_small(file: dict[str, Any], /, **named: Any) -> Vocabulary:
    texts = {"bos_token": "<s>", "eos_token": "</s>"}
    return read_tokenizer_json(file, named=Named(**{"texts": texts, **named}), source="small/tokenizer.json")


def the_library(file: dict[str, Any], /) -> Tokenizer:
    kept = {**file, "truncation": None, "model": {**file["model"], "dropout": None}}
    return Tokenizer.from_str(json.dumps(kept))


def metaspace(scheme: str) -> Change:
    def change(file: dict[str, Any]) -> None:
        file["normalizer"] = None
        metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
        file["pre_tokenizer"] = metaspace
        file["decoder"] = metaspace

    return change


def setting(*path: str | int, value: object) -> Change:
    def change(file: Any) -> None:
        for key in path[:-1]:
            file = file[key]
        file[path[-1]] = value

    return change
