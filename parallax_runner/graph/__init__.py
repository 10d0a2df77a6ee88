"""The captured user's graph, which every later stage reads and none changes."""
