"""Tools that all routes use to send tensors: collectives, compression, sum dtypes, and the byte count."""
