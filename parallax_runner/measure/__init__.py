"""Looks at a few steps of the user's own graph and data, on one device: which rows they touch."""
