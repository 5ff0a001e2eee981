"""`outrider exact`: whether replies are the same, token for token, with and without speculation."""
