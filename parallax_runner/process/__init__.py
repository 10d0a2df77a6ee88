"""Tasks of every process: measuring its start, keeping its output working, importing TensorFlow, and ending with an
exit status."""
