"""Turns `VariableInfo`s and a cluster into a `Plan`, which contains a route and a reason for each variable. Does not
use TensorFlow."""
