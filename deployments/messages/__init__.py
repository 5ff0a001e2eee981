"""What crosses a process: messages, the ports that carry them, and every error. No JAX, no Ray, no HTTP."""
