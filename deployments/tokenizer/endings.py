"""Which tokens end a reply: the rule, as tables.

A reply ends at a token that the files name (end of text, of turn, of message), and at any token that they mark as a
control token and whose text is one of `END_TEXTS`: a chat model may close its turn with one token and its text with
another, and metadata has room for one of each. The list follows llama.cpp (`src/llama-vocab.cpp`, its
end-of-generation tokens), with one difference: llama.cpp turns a token with such a text into a control token whatever
the file says; here the file's own mark decides, so that Gemma's `</s>`, which is HTML, ends nothing. The repository
and file marks of code models are in the list because a reply that opens another file has ended.
"""

from collections.abc import Iterable, Sequence

from deployments.tokenizer.vocabulary import TokenType

END_METADATA = ("eos_token_id", "eot_token_id", "eom_token_id")

END_TEXTS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "</s>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "[|endofturn|]",
        "<end_of_turn>",
        "<turn|>",
        "<eos>",
        "<end_of_utterance>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",  # with a full-width bar and lower blocks
        "<|fim_pad|>",
        "<|repo_name|>",
        "<reponame>",
        "<|file_sep|>",
    }
)

# Gemma 4 hands over to a tool with this one. Converters mark it as text, so that clients can see it.
_VISIBLE_END_TEXTS = frozenset({"<|tool_response>"})


def ending_ids(named: Iterable[int | None], /, *, tokens: Sequence[str], types: Sequence[TokenType]) -> tuple[int, ...]:
    """The tokens that end a reply, those that the files name first."""
    marked = (
        token_id
        for token_id, text in enumerate(tokens)
        if (text in END_TEXTS and types[token_id] is TokenType.CONTROL)
        or (text in _VISIBLE_END_TEXTS and types[token_id] in (TokenType.CONTROL, TokenType.USER_DEFINED))
    )
    return tuple(dict.fromkeys(token_id for token_id in (*named, *marked) if token_id is not None))
