"""The control connection between the driver and each of its processes."""
