"""Converts `VariableInfo`s and a cluster to a `Plan` with a route and a reason for each variable. Without
TensorFlow."""
