"""Proves a distributed step right: a reference that knows nothing of rewriting, and the comparison with it."""
