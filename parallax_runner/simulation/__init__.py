"""Predicts step times on hypothetical clusters from one measurement and the cost model. Starts no processes."""
