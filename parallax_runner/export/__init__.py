"""Exports the results of a run: the trained model for serving, and its checkpoints as artifacts."""
