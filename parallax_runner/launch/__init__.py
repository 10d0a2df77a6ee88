"""Starts the workers and servers of a run, watches them and ends them. Imports neither TensorFlow nor Horovod."""
