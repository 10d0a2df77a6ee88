"""Configuration-driven experiments in distributed TensorFlow: dense gradients by allreduce, sparse ones to servers."""

__version__ = "0.1.0"
