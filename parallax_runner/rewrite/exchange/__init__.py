"""The modules that all routes use to send tensors: collectives, compression, dtypes for sums, and byte counts."""
