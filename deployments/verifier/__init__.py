"""The verifier: batches requests, runs windows, accepts what the target itself draws."""
