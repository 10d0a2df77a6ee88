"""The launchers. Each launcher is a class that starts the processes of a run in its own way."""
