"""A worker process: one rank of a run, of a row trial or of a calibration."""
