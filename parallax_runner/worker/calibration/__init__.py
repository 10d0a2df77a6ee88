"""The process of one rank of a calibration."""
