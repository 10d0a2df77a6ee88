"""Profiles where a step's time goes: RunMetadata of chosen steps, a trace of all processes, shares, the heaviest
ops."""
