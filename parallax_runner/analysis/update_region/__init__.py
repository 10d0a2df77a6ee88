"""Rules for the ops in the update that run next to a variable's shards. Planning and the rewrite share these rules."""
