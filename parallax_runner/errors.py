"""Errors shown to the user as one message, without a traceback."""

from __future__ import annotations

import dataclasses
import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from parallax_runner.files.credentials import masked, masked_values

COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Setting:
    """A setting that an error is about, as its message shows it: `key=value (where)`.

    `value` is None if the message shows only the key. `item` is the position of the value in the list that the key
    names. `where` is the origin of the value, such as `command line`, or None if it is unknown.
    """

    key: str
    value: str | None
    item: int | None = None
    where: str | None = None

    @classmethod
    def of(cls, key: str, value: Any, *, item: int | None = None, where: str | None = None) -> Setting:
        """Returns the setting with the value as a user types it."""
        return cls(key, written(value), item, where)

    @classmethod
    def typed(cls, line: str, *, where: str = COMMAND_LINE) -> Setting:
        """Returns a word of the command line, such as `train.steps=5` or `~train.seed`."""
        key, has_value, value = line.partition("=")
        return cls(key, value if has_value else None, where=where)

    def __str__(self) -> str:
        item = "" if self.item is None else f"[{self.item}]"
        value = "" if self.value is None else f"={self.value}"
        where = "" if self.where is None else f" ({self.where})"
        return f"{self.key}{item}{value}{where}"


def written(value: Any) -> str:
    """Returns a value as a user types it on a command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value) if isinstance(value, tuple) else value)


@dataclass(frozen=True)
class ErrorParts:
    """The parts of an error's message: the settings that it is about, what is wrong or was expected, and the remedy.

    `job` is the title of the job of a sweep, with which the message begins.
    """

    reason: str
    settings: tuple[Setting, ...] = ()
    remedy: str | None = None
    job: str = ""

    def __str__(self) -> str:
        about = ", ".join(map(str, self.settings))
        separator = ": " if about else ""
        return f"{self.job}{about}{separator}{self._advice()}"

    def _advice(self) -> str:
        if self.remedy is None:
            return self.reason
        separator = " " if self.reason.endswith(".") else "; "
        return f"{self.reason}{separator}{self.remedy}"

    def with_origins(self, origin_of: Callable[[Setting], str | None]) -> ErrorParts:
        """Returns the parts with the origin of each setting that has none yet."""
        return self._with_places(lambda one: origin_of(one) if one.where is None else one.where)

    def given_by(self, giver: str) -> ErrorParts:
        """Returns the parts with `giver`, such as `fit`, in place of the command line."""
        return self._with_places(lambda one: giver if one.where == COMMAND_LINE else one.where)

    def _with_places(self, place_of: Callable[[Setting], str | None]) -> ErrorParts:
        settings = tuple(dataclasses.replace(one, where=place_of(one)) for one in self.settings)
        return dataclasses.replace(self, settings=settings)

    def as_json(self) -> dict[str, Any]:
        """Returns the parts as values of JSON, with passwords masked."""
        fields: dict[str, Any] = masked_values(dataclasses.asdict(self))
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ErrorParts:
        """Returns the parts that `as_json` has described. Raises ValueError if the fields do not describe an error."""
        try:
            settings = tuple(Setting(**one) for one in fields["settings"])
            parts = cls(**{**fields, "settings": settings})
        except (TypeError, KeyError) as error:
            raise ValueError(f"not the parts of an error: {error}") from error
        if not isinstance(parts.reason, str) or not isinstance(parts.remedy, str | None):
            raise ValueError("not the parts of an error: expected texts")
        return parts


class ParallaxError(Exception):
    """The base class of this package's errors.

    The argument states what is wrong or was expected. `about` adds the settings that the error is about, and what the
    user can do. The message consists of these parts.

    `called_at` is the line of the user's code that called `fit`, if that call raised the error.
    """

    exit_status = 1
    called_at: str | None = None

    # There is no own constructor, because TensorFlow raises an error of a traced function again, and only keeps the
    # class of an error that has Exception's constructor.
    _parts: ErrorParts | None = None

    def about(self, *settings: Setting, remedy: str | None = None) -> Self:
        """Adds the settings that this error is about, and the remedy. Returns this error."""
        self.parts = dataclasses.replace(self.parts, settings=settings, remedy=remedy)
        return self

    @property
    def parts(self) -> ErrorParts:
        """The parts of the message."""
        return self._parts or ErrorParts(super().__str__())

    @parts.setter
    def parts(self, parts: ErrorParts) -> None:
        self._parts = parts

    def __str__(self) -> str:
        """Returns the message with passwords masked."""
        return masked(str(self.parts))

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
