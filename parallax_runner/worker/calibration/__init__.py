"""One rank of a calibration."""
