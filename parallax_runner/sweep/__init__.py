"""Holds the jobs of `-m` together: what each has come to, one run above them in MLflow, a ranking at the end."""
