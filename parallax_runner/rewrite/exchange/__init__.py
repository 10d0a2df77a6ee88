"""What all routes send by: collectives, compression, sum dtypes, and the count of bytes."""
