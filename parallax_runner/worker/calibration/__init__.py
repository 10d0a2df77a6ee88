"""The process of one rank in a calibration."""
