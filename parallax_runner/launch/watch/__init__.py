"""Detects processes that are alive but do nothing, and reports where they are."""
