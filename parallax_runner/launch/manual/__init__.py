"""Processes that somebody else starts, on any host and in any order, and that stand by for a run (docs/design/0051)."""
