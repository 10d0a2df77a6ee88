"""Where a step's time goes: RunMetadata of chosen steps, one trace of all processes, shares, and the heaviest ops."""
