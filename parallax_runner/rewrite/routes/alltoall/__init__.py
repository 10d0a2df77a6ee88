"""The route alltoall: each rank owns some rows of a variable."""
