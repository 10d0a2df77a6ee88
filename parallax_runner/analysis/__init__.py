"""Analyzes the variables of a graph: whether gradients are dense or sparse, which optimizer slots belong to a variable,
and what the update does."""
