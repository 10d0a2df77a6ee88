"""Errors shown to the user as one message, without a traceback."""

import errno
import re

from parallax_runner.files.credentials import masked


class ParallaxError(Exception):
    """The base: its message names the key or path, the value and the remedy."""

    exit_status = 1

    def __str__(self) -> str:
        """The message, without passwords."""
        return masked(super().__str__())


class Interrupted(BaseException):
    """The user or the batch system wants this run to end. No error, so `except Exception` lets it through."""


class ConfigError(ParallaxError):
    """A wrong key, type, value or combination in the configuration."""

    exit_status = 2


class DataError(ParallaxError):
    """Training data that cannot be read, or is too small to train on."""

    exit_status = 2


class PlanError(ParallaxError):
    """What was asked cannot be done with this graph, found before any process starts."""

    exit_status = 2


class CollectiveError(ParallaxError):
    """What ranks were to do together cannot be done: the kind of tensor, or the way in which they are connected."""


class CaptureError(ParallaxError):
    """The user's graph could not be captured."""


class LaunchError(ParallaxError):
    """A worker or a server could not be started, or died."""


class CheckpointError(ParallaxError):
    """A checkpoint cannot be read, written, or does not fit the graph."""


class TrainingError(ParallaxError):
    """Training cannot go on, as with a loss that is not finite."""


class TrackingError(ParallaxError):
    """What a run has recorded could not be sent to the tracker's store."""


class ExportError(ParallaxError):
    """A trained model cannot be made into one for serving."""


class StorageError(ParallaxError):
    """A file that the run must write cannot be: the disk is full, or cannot be written."""


class ScriptError(ParallaxError):
    """A script that called parallel_run ended in a worker as no finished run does."""

    def __init__(self, message: str, *, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


_STORAGE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})


def is_of_storage(error: BaseException) -> bool:
    """Whether an error is the disk's and not the program's; started again, a run would meet it again."""
    return isinstance(error, OSError) and error.errno in _STORAGE_ERRNOS


def reason_in(message: str) -> str:
    """What went wrong, out of the message of a TensorFlow error, in one line.

    TensorFlow puts the place in the program that made the op before it. Behind it are the node, and a hint about memory
    that is exhausted, although a full disk has the same code.
    """
    told = re.split(r"^Node: .*$", message, flags=re.MULTILINE)[-1]
    lines = [re.sub(r"^\s*\(\d+\) [A-Z_]+: ", "", line).strip() for line in told.splitlines()]
    noise = re.compile(r"$|Graph execution error:|\d+ root error|.*\[\[\{\{")
    return next((line for line in lines if not noise.match(line)), message.strip())
