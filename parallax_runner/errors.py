"""Errors shown to the user as one message, without a traceback. Imports nothing."""


class ParallaxError(Exception):
    """The base: its message names the key or path, the value and the remedy."""

    exit_status = 1


class ConfigError(ParallaxError):
    """A wrong key, type, value or combination in the configuration."""

    exit_status = 2


class DataError(ParallaxError):
    """Training data that cannot be read, or is too small to train on."""

    exit_status = 2


class PlanError(ParallaxError):
    """What was asked cannot be done with this graph, found before any process starts."""

    exit_status = 2


class CaptureError(ParallaxError):
    """The user's graph could not be captured."""


class LaunchError(ParallaxError):
    """A worker or a server could not be started, or died."""


class CheckpointError(ParallaxError):
    """A checkpoint cannot be read, written, or does not fit the graph."""
