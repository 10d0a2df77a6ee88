"""A cluster for tests: an API server, and pods that are processes of this machine."""
