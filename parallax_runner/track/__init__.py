"""Records a run's configuration, metrics and outcome. The driver records the run; workers only read the run's id."""
