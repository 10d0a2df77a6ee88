"""What `import parallax_runner as parallax` offers to a script: the original's `parallel_run` and its configuration."""
