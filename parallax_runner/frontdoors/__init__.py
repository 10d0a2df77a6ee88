"""Lets users of other systems start the processes of a run one by one, with those systems' flags (docs/design/0053)."""
