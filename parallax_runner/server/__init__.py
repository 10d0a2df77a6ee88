"""A server process."""
