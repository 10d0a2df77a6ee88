"""Finds the process that died first, and describes the failure."""
