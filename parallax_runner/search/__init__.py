"""Searches for the number of pieces that makes a step fastest. Uses measured times, and launches no processes
itself."""
