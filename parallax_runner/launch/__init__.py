"""Starts, watches and terminates the workers and servers of a run. Does not import TensorFlow."""
