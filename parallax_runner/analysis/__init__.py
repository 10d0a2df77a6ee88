"""Analyzes the variables of a graph: dense or sparse gradients, optimizer slots, and the effects of the update."""
