"""Reads training examples. Uses only NumPy, no TensorFlow."""
