"""A parameter server: the process that holds variables and runs their updates. The driver starts it."""
