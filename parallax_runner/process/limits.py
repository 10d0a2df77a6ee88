"""Recognizes failures that a limit of this process (`ulimit`) causes, and names the limit."""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass

from parallax_runner.errors import LimitError, ParallaxError

# A process of a run starts up to this many threads while it imports TensorFlow.
THREADS_OF_A_PROCESS = 100


@dataclass(frozen=True)
class _Limit:
    """A limit. `option` is its option of `ulimit`. `phrases` are parts of the messages of Python, the C library, the
    compiler and TensorFlow if the limit is reached. `unit_bytes` is the size of the unit in which `ulimit` shows it."""

    option: str
    number: int
    what: str
    phrases: tuple[str, ...]
    unit: str = ""
    unit_bytes: int = 1

    def value(self) -> int | None:
        """Returns the limit in the unit of `ulimit`, or None if there is none."""
        soft, _ = resource.getrlimit(self.number)
        return None if soft == resource.RLIM_INFINITY else soft // self.unit_bytes

    def is_in(self, text: str) -> bool:
        """Returns whether the text tells that this limit is reached."""
        return any(phrase in text for phrase in self.phrases)

    def sentence(self, value: int) -> str:
        """Returns the limit and the remedy."""
        return f"{self.what}: at most {value}{self.unit} (ulimit {self.option}); raise this limit"


_PROCESSES = _Limit(
    "-u",
    resource.RLIMIT_NPROC,
    "processes and threads of this user",
    (
        "Resource temporarily unavailable",
        "can't start new thread",
        "pthread_create() failed",
        "SYS_LIMITS_CHILDREN",
    ),
)
_ADDRESSES = _Limit(
    "-v",
    resource.RLIMIT_AS,
    "address space of a process",
    (
        "Cannot allocate memory",
        "MemoryError",
        "Unable to allocate",
        "bad_alloc",
        "failed to map segment",
        "cannot create shared object descriptor",
        "out of memory",
    ),
    " KiB",
    1024,
)
# NumPy tells only how much it has written («100 requested and 50 written»).
_LIMITS = (
    _Limit("-n", resource.RLIMIT_NOFILE, "open files of a process", ("Too many open files", "SYS_LIMITS_PIPES")),
    _PROCESSES,
    _ADDRESSES,
    _Limit(
        "-f",
        resource.RLIMIT_FSIZE,
        "size of a file",
        ("File too large", "File size limit exceeded", "SIGXFSZ", " requested and "),
        " KiB",
        1024,
    ),
    _Limit("-t", resource.RLIMIT_CPU, "processor time of a process", ("CPU time limit exceeded", "SIGXCPU"), " s"),
)


def limit_in(text: str) -> str | None:
    """Returns a sentence about the limit whose message is in the text, or about both limits that have this message.
    Returns None if the text contains no such message, or if this process does not have that limit."""
    for limit in _LIMITS:
        value = limit.value()
        if value is None or not limit.is_in(text):
            continue
        most_kib = _ADDRESSES.value()
        if limit is _PROCESSES and most_kib is not None:
            # The kernel gives the same error if there is no address space for the stack of a thread.
            return f"{limit.sentence(value)}; {_ADDRESSES.sentence(most_kib)}"
        return limit.sentence(value)
    return None


def tight_limit() -> str | None:
    """Returns a sentence about a limit that can end a process without a message: this user can start hardly any more
    threads, or the address space is limited. Returns None if there is no such limit."""
    most = _PROCESSES.value()
    # The kernel does not apply this limit to root.
    if most is not None and os.geteuid() != 0 and most - _tasks_of_user() < THREADS_OF_A_PROCESS:
        return _PROCESSES.sentence(most)
    most_kib = _ADDRESSES.value()
    return None if most_kib is None else _ADDRESSES.sentence(most_kib)


def explained(error: BaseException) -> BaseException:
    """Returns a LimitError that names the limit if a limit has caused the error. Otherwise, returns the error."""
    if isinstance(error, ParallaxError) or not isinstance(error, Exception):
        return error
    text = f"{type(error).__name__}: {error}"
    sentence = limit_in(text)
    if sentence is None:
        return error
    told = LimitError(f"{text}; {sentence}")
    told.__cause__ = error
    return told


def raise_if_limited(error: BaseException) -> None:
    """Raises LimitError if a limit has caused the error. A file that could not be read for this reason is not
    damaged."""
    told = explained(error)
    if told is not error:
        raise told from error


def with_limit(text: str) -> str:
    """Returns the text of an error, followed by the limit that has caused it, if there is one."""
    sentence = limit_in(text)
    return text if sentence is None else f"{text}; {sentence}"


def _tasks_of_user() -> int:
    """Returns the number of processes and threads of this user."""
    number = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # the process has ended
            if os.stat(f"/proc/{pid}").st_uid == os.geteuid():
                number += len(os.listdir(f"/proc/{pid}/task"))
    return number
