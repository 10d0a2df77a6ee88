"""From the single-device graph and a plan to the graph that one rank runs. Depends on (graph, plan, rank) only."""
