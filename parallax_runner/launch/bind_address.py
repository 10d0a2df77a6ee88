"""Binds the TCP sockets of a run's processes to one network interface, by preloading a library into the processes.

The comments in `bind_address.c` describe how the library works. The library is compiled when this project is installed
(`hatch_build.py`).
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
# If this variable contains an address, a process binds only to its own address on the route to that address, and not to
# all interfaces.
TOWARDS = "PARALLAX_BIND_TOWARDS"
# In LD_PRELOAD, the dynamic linker ends a path at each of these characters.
SEPARATORS = frozenset(" :")


def preload(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the environment variable that loads the library into a process. The user's own preloaded libraries come
    first, because some libraries, such as AddressSanitizer, must be loaded first. Raises LaunchError if the library is
    missing."""
    return {PRELOAD: ":".join(filter(None, (environ.get(PRELOAD), library_path())))}


@functools.cache
def library_path() -> str:
    """Returns a path to the library that the dynamic linker can read. Raises LaunchError if the library is missing."""
    if not LIBRARY.is_file():
        raise LaunchError(
            f"{LIBRARY} is missing; without it, other machines could reach this run. Install this project again "
            "(in a checkout: scripts/setup)"
        )
    if is_readable_elsewhere():
        return str(LIBRARY)
    # This path refers to a file descriptor of this process, so it is valid as long as this process lives.
    return f"/proc/{os.getpid()}/fd/{os.open(LIBRARY, os.O_RDONLY)}"


def is_readable_elsewhere() -> bool:
    """Returns whether the dynamic linker can load the library from its installed path, which is the same on all
    hosts."""
    return not SEPARATORS.intersection(str(LIBRARY))


def bind_towards(address: str) -> None:
    """Makes this process bind to its own address on the route to `address`. Raises LaunchError if the library is not
    loaded."""
    _loaded().parallax_bind_towards(address.encode())


@contextmanager
def host_named(address: str) -> Iterator[None]:
    """Makes `address` the result of `gethostname()` in this process during the `with` block. Raises LaunchError if the
    library is not loaded or is too old."""
    library = _loaded()
    if not hasattr(library, "parallax_name_host"):
        raise LaunchError(
            f"{LIBRARY} is from an older version: install this project again (in a checkout: scripts/setup)"
        )
    library.parallax_name_host(address.encode())
    try:
        yield
    finally:
        library.parallax_name_host(None)


def check_loaded() -> None:
    """Raises LaunchError if the library should be loaded into this process but is not."""
    if TOWARDS in os.environ:
        _loaded()


def _loaded() -> ctypes.CDLL:
    process = ctypes.CDLL(None)
    if not hasattr(process, "parallax_bind_towards"):
        raise LaunchError(
            f"{LIBRARY} is not loaded into this process, so other machines could connect to the process. Expected the "
            f"dynamic linker to load the library because of {PRELOAD}={os.environ.get(PRELOAD)!r}; the "
            "run's logs show the reason"
        )
    return process
