"""Runs the ops of the update on each shard's rows."""
