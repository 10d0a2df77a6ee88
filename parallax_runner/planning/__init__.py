"""Turns `VariableInfo`s and a cluster into a `Plan` with a route and a reason for each variable. No TensorFlow here."""
