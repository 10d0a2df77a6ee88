"""Detects processes that are alive but make no progress, and reports where they are."""
