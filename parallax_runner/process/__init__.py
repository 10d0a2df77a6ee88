"""Tasks that every process has: measure its start, keep its output working, import TensorFlow, and end with an exit
status."""
