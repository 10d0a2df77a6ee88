"""Profiles how steps spend their time. Records the RunMetadata of chosen steps, and writes a trace of all processes,
the fraction of a step's time that each part takes, and the heaviest ops."""
