"""Rules for running the ops of an update on a variable's shards. Planning and the rewrite share these rules."""
