"""Reads training examples: NumPy only, no TensorFlow."""
