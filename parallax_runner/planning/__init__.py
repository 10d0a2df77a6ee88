"""From `VariableInfo`s and a cluster to a `Plan`: one route a variable, explained. No TensorFlow here."""
