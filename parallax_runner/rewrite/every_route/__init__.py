"""Passes that do not depend on the routes of a plan."""
