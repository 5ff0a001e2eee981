"""The gated delta net's recurrence: `pallas` is for TPUs. Processors run `lm.recurrence`'s loop."""
