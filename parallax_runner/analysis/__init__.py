"""Analyses the variables of a graph: dense or sparse gradients, optimizer slots, and what the update does."""
