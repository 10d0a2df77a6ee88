"""Records what a run was asked, what it did and how it ended; the driver records, workers ask for the run's id."""
