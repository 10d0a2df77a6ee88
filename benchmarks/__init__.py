"""Benchmarks of the project. No module in parallax_runner imports this package."""
