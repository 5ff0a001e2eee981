"""The composition root: settings, the command line, and the one place where the four deployments are bound together."""
