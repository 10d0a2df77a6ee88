"""Looks for the number of pieces with which a step takes least time; told times, it launches nothing itself."""
