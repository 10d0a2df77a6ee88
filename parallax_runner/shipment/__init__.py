"""What the driver hands to its workers as files: the captured graph, the values of its variables, and the data."""
