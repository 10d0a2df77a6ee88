"""Errors shown to the user as one message, without a traceback."""

import errno
import re
from typing import Literal

from parallax_runner.files.credentials import masked


class ParallaxError(Exception):
    """The base class of this package's errors. The message names the key or path, the value and the remedy.

    `called_at` is the line of the user's code that called `fit`, if that call raised the error.
    """

    exit_status = 1
    called_at: str | None = None

    def __str__(self) -> str:
        """Returns the message with passwords masked."""
        return masked(super().__str__())

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that IPython and Jupyter show in place of a traceback."""
        where = [] if self.called_at is None else [f"    at {self.called_at}"]
        return [f"{type(self).__name__}: {self}", *where]


class Interrupted(BaseException):
    """Raised when the user or the batch system ends this run. This exception is not an error, so `except Exception`
    does not catch it."""


class ConfigError(ParallaxError):
    """The configuration contains an invalid key, type, value or combination of values."""

    exit_status = 2


class DataError(ParallaxError):
    """Training data cannot be read, or is too small to train on."""

    exit_status = 2


class PlanError(ParallaxError):
    """The graph does not support the requested settings. This error is raised before any process starts."""

    exit_status = 2


class CollectiveError(ParallaxError):
    """A collective does not support the given tensor, or the current connection between the ranks."""


class CaptureError(ParallaxError):
    """The user's graph could not be captured."""


class LaunchError(ParallaxError):
    """A worker or a server could not be started, or died."""


class CheckpointError(ParallaxError):
    """A checkpoint cannot be read or written, or does not match the graph."""


class TrainingError(ParallaxError):
    """Training cannot continue, for example because the loss is not finite."""


class TrackingError(ParallaxError):
    """The records of a run could not be sent to the tracker's store."""


class ExportError(ParallaxError):
    """A trained model cannot be exported for serving."""


class StorageError(ParallaxError):
    """A file that the run needs cannot be written: the disk is full, read-only or faulty."""


class FitError(ParallaxError):
    """A run that `fit` started has failed, or was stopped by a signal.

    `exit_status` is the exit status of the run: 128 plus the number of the signal if a signal stopped it. `status` is
    `failed` or `interrupted`. `run_dir` is the folder of the run. `ckpt_path` is the newest checkpoint, or None if
    there is none.
    """

    # All arguments but the message have defaults, because pickle passes only the message and then sets the attributes.
    def __init__(
        self,
        message: str,
        *,
        exit_status: int = 1,
        status: Literal["failed", "interrupted"] = "failed",
        run_dir: str | None = None,
        ckpt_path: str | None = None,
    ) -> None:
        super().__init__(message)
        self.exit_status = exit_status
        self.status = status
        self.run_dir = run_dir
        self.ckpt_path = ckpt_path


class ScriptError(ParallaxError):
    """A script that called parallel_run ended abnormally in a worker."""

    def __init__(self, message: str, *, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class LimitError(ParallaxError):
    """A limit of the process (`ulimit`) is too low for the run."""


_STORAGE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})


def is_of_storage(error: BaseException) -> bool:
    """Returns whether the disk, not the program, caused the error. A restarted run would fail with the same error."""
    return isinstance(error, OSError) and error.errno in _STORAGE_ERRNOS


def lost_server(error: BaseException) -> str | None:
    """Returns one line about a TensorFlow error that reports a broken connection to a server, or None for any other
    error."""
    server = re.search(r"/job:ps/replica:\d+/task:(\d+)", str(error))
    if type(error).__name__ != "UnavailableError" or server is None:
        return None
    told = re.search(r'grpc_message:"([^"]*)"', str(error))
    return f"its connection to server {server[1]} broke{f' ({told[1]})' if told else ''}"


def reason_in(message: str) -> str:
    """Extracts the cause from the message of a TensorFlow error, in one line.

    Such a message begins with the line of the program that created the op. After the cause, it contains the node and a
    hint about exhausted memory. The hint is misleading, because a full disk has the same error code as exhausted
    memory.
    """
    told = re.split(r"^Node: .*$", message, flags=re.MULTILINE)[-1]
    lines = [re.sub(r"^\s*\(\d+\) [A-Z_]+: ", "", line).strip() for line in told.splitlines()]
    noise = re.compile(r"$|Graph execution error:|\d+ root error|.*\[\[\{\{")
    return next((line for line in lines if not noise.match(line)), message.strip())
