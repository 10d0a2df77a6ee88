"""Reads training examples. Uses NumPy and not TensorFlow."""
