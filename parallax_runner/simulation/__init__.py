"""Predicts the steps of hypothetical clusters from one measurement and the cost model. Starts no processes."""
