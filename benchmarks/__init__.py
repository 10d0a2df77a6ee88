"""Measures how fast the project is. Nothing in parallax_runner imports it."""
