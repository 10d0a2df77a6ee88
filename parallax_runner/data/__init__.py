"""Reads training examples. Uses NumPy but not TensorFlow."""
