"""Checkpoints in logical names and full shapes: written whole, read back for any cluster."""
