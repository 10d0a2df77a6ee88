"""Starts the workers and servers of a run, watches them and ends them; imports no TensorFlow and no Horovod."""
