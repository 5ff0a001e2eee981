"""The four deployments, and the two libraries they share: `messages` (what crosses a process) and `lm` (models).

Importing this package imports nothing.
"""
