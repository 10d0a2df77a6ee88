"""Initial values that are made in blocks of rows, so that no process holds a whole table."""
