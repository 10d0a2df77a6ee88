"""Rules, shared by planning and rewriting, for ops of the update that run next to a variable's shards."""
