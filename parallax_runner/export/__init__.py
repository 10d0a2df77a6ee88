"""What a run leaves for others: the trained model for serving, and its checkpoints as artifacts."""
