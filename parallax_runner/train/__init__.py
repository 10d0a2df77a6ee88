"""Runs steps in a session: feeds, checkpoints, measures, and reports to the driver."""
