"""The tasks of every process: time its start, keep its output going, import TensorFlow, end with a status."""
