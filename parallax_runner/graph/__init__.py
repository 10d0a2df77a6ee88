"""The user's graph, captured: what every later stage reads and none changes."""
