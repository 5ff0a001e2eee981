"""The model library: networks, attention, caches, checkpoints, sampling and drafting strategies. No Ray, no HTTP."""
