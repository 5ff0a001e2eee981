"""Where keys and values live: pages on the device, their bookkeeping on the host."""
