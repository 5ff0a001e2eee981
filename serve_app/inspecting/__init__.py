"""What `outrider inspect` says of a checkpoint, from its header alone: no weight is read, no device is started."""
