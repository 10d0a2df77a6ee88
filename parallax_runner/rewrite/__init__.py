"""Rewrites the single-device graph into the graph that one rank runs. The result depends only on the graph, the plan,
the rank and settings of the run, such as the seed."""
