"""Which process died first, and what to say of it."""
