"""Manages the jobs of `-m`: the ledger of their states, a tracked parent run, and the ranking at the end."""
