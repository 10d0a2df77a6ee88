"""Benchmarks of the project. Nothing in parallax_runner imports this package."""
