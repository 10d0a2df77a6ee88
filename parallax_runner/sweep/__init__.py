"""Manages the jobs of a sweep (`-m`): a ledger of their states, a tracked parent run, and a ranking at the end."""
