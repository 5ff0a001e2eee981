"""The HTTP door: the OpenAI API in, token ids to the verifier, text back. No JAX; Ray in two files only."""
