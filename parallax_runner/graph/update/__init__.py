"""What the configuration group `update` changes about the optimizer of a TensorFlow 1 graph."""
