"""Searches for the number of pieces with the shortest step. Uses measured times, and launches nothing itself."""
