"""The graph captured from the user's model. Every later stage reads this graph, and none changes it."""
