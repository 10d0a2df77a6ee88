"""Holds the jobs of `-m` together: what each has come to, one tracked run above them, a ranking at the end."""
