"""Tasks of every process: it measures the duration of its start, protects its output, imports TensorFlow, and ends with
an exit status."""
