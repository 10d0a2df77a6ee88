"""The MLflow tracker: a journal in the run's folder, and a thread that sends the journal to MLflow's store."""
