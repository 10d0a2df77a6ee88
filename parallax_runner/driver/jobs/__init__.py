"""Short jobs that the driver runs to measure something: row trials, calibrations and partition trials."""
