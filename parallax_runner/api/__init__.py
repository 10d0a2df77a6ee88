"""The API for scripts (`import parallax_runner as parallax`), which offers the original Parallax's `parallel_run` and
its configuration."""
