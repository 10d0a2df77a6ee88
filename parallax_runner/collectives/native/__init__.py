"""Exchanges through this project's own TensorFlow ops, whose messages MPI carries. The sources are in `src/`."""
