"""Starts, watches and terminates the workers and servers of a run. Imports neither TensorFlow nor Horovod."""
