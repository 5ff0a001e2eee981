"""One folder per architecture: `modeling` is the network, `params` its weight table."""
