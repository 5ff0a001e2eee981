"""The llama architecture: SmolLM2, Llama 2 and 3, Mistral."""
