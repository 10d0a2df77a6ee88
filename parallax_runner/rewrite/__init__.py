"""Rewrites the single-device graph into the graph that one rank runs. The result depends only on the graph, the plan
and the rank."""
