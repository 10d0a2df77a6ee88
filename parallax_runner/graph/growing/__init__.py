"""Vocabularies that grow: a map from keys to the rows of a table, in ordinary variables (docs/design/0103)."""
