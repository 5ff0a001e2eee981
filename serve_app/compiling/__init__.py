"""What `outrider compile` does: programs compiled for chips that are not here, and what can be told from them."""
