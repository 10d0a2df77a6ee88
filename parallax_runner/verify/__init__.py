"""Verifies a distributed step by comparing it with a reference that does not use the rewriting."""
