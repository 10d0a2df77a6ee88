"""Analyzes a graph's variables: whether their gradients are dense or sparse, which optimizer slots belong to them, and
what their updates do."""
