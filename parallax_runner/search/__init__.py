"""Searches for the number of pieces with which a step takes the least time. Uses measured times, and launches no
processes itself."""
