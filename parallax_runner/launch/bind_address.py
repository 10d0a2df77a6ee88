"""Keeps the TCP sockets of a run's processes off all interfaces but one, by a library that is preloaded into them.

What it does is described in `bind_address.c`, which is compiled when this project is installed (`hatch_build.py`).
"""

import ctypes
import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from parallax_runner.errors import LaunchError

LIBRARY = Path(__file__).with_name("libbind_address.so")
LOOPBACK = "127.0.0.1"
PRELOAD = "LD_PRELOAD"
# A process binds, in place of all interfaces, to the address from which it reaches this one.
TOWARDS = "PARALLAX_BIND_TOWARDS"
# The dynamic linker takes each of these for the end of a path.
SEPARATORS = frozenset(" :")


def preload(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable that loads the library into a process; what the user loads so comes before it, because some, as
    AddressSanitizer, have to be the first. Raises LaunchError."""
    return {PRELOAD: ":".join(filter(None, (environ.get(PRELOAD), library_path())))}


@functools.cache
def library_path() -> str:
    """A name of the library that the dynamic linker can read. Raises LaunchError where there is none."""
    if not LIBRARY.is_file():
        raise LaunchError(
            f"{LIBRARY} is missing, without which other machines could reach this run: install this project again "
            "(in a checkout: scripts/setup)"
        )
    if is_readable_elsewhere():
        return str(LIBRARY)
    # By a name of this process's, which stays open as long as this process lives.
    return f"/proc/{os.getpid()}/fd/{os.open(LIBRARY, os.O_RDONLY)}"


def is_readable_elsewhere() -> bool:
    """Whether the dynamic linker can read the library's own path, which is the same on all hosts."""
    return not SEPARATORS.intersection(str(LIBRARY))


def bind_towards(address: str) -> None:
    """From now on this process binds to the address from which it reaches `address`. Raises LaunchError if it cannot,
    because the library is not loaded."""
    _loaded().parallax_bind_towards(address.encode())


@contextmanager
def host_named(address: str) -> Iterator[None]:
    """Within, this process takes an address for its host's name. Raises LaunchError where the library is not loaded,
    or too old."""
    library = _loaded()
    if not hasattr(library, "parallax_name_host"):
        raise LaunchError(
            f"{LIBRARY} is of an older version: install this project again (in a checkout: scripts/setup)"
        )
    library.parallax_name_host(address.encode())
    try:
        yield
    finally:
        library.parallax_name_host(None)


def check_loaded() -> None:
    """Raises LaunchError where this process should have the library, and has not."""
    if TOWARDS in os.environ:
        _loaded()


def _loaded() -> ctypes.CDLL:
    process = ctypes.CDLL(None)
    if not hasattr(process, "parallax_bind_towards"):
        raise LaunchError(
            f"{LIBRARY} is not loaded into this process, so that other machines could reach it: expected the dynamic "
            f"linker to load it, as {PRELOAD} says ({os.environ.get(PRELOAD)!r}); the run's logs have its reason"
        )
    return process
