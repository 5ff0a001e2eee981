"""From logits to tokens: what a request does to its logits, the draw itself, and the log-probabilities it reports."""
