"""Searches for the number of pieces with the shortest step. It works on measured times and launches nothing itself."""
