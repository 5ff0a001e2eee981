"""Which tokens end a reply: the rule, as two tables.

A reply ends at a token that the metadata names (end of text, of turn, of message), and at any token that the file
marks as a control token and whose text is one of `END_TEXTS`: a chat model may close its turn with one token and its
text with another, and the metadata has room for one of each. The list follows llama.cpp (`src/llama-vocab.cpp`, its
end-of-generation tokens) as far as byte-level vocabularies go, with one difference: llama.cpp turns a token with such
a text into a control token whatever the file says; here the file's own mark decides. The repository and file marks of
code models are in the list because a reply that opens another file has ended.
"""

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
        "[EOT]",
        "[EOS]",
        "<end_of_utterance>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",  # with a full-width bar and lower blocks
        "<|fim_pad|>",
        "<|repo_name|>",
        "<reponame>",
        "<|file_sep|>",
    }
)
