"""Rewrites the single-device graph into the graph that one rank runs. The result depends on (graph, plan, rank)
only."""
