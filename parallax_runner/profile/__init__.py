"""Profiles how steps spend their time. Records the RunMetadata of chosen steps, and writes a trace of all processes,
the share of each part in a step's time, and the heaviest ops."""
