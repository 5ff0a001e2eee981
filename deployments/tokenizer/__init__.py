"""The tokenizer room: text and conversations to token ids, and the table that turns ids back into bytes."""
