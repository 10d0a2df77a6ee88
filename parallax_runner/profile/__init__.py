"""Profiles where a step's time goes. Records RunMetadata of chosen steps, and writes a trace of all processes, the
shares of the step's time, and the heaviest ops."""
