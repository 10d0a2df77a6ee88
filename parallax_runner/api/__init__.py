"""The API for scripts (`import parallax_runner as parallax`), with the original's `parallel_run` and its
configuration."""
