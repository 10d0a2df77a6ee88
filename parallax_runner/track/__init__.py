"""Records a run: its configuration, its metrics and how it ended. The driver records; workers only ask for the run's
id."""
