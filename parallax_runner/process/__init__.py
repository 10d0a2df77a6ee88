"""Tasks of every process: it measures how long its startup takes, protects its output, imports TensorFlow, and exits
with a status."""
