"""One package a route: its passes."""
