"""The allgather route: ranks exchange the rows that they touched."""
