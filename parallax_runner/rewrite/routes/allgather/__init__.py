"""The route allgather: ranks exchange the rows that they touched."""
