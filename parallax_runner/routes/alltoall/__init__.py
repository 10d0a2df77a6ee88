"""The alltoall route: each rank owns some rows of a variable, and ranks exchange rows with the owners."""
