"""Loads a library into the processes of a run before all others, so that it can replace functions of other libraries.

The library is compiled from `bind_address.c` and `distinct_seeds.c` when this project is installed (`hatch_build.py`).
"""

import functools
import os
from collections.abc import Mapping
from ctypes import CDLL
from pathlib import Path
from typing import Any

from parallax_runner.errors import LaunchError

LIBRARY = Path(__file__).with_name("libpreloaded.so")
PRELOAD = "LD_PRELOAD"
# In LD_PRELOAD, the dynamic linker ends a path at each of these characters.
SEPARATORS = frozenset(" :")


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
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


def function(name: str) -> Any:
    """Returns a function of the library in this process. Raises LaunchError if the library is not loaded or is too
    old."""
    process = CDLL(None)
    if not hasattr(process, name):
        if hasattr(process, "parallax_bind_towards"):
            raise LaunchError(
                f"{LIBRARY} is from an older version: install this project again (in a checkout: scripts/setup)"
            )
        raise LaunchError(
            f"{LIBRARY} is not loaded into this process, so other machines could connect to the process. Expected the "
            f"dynamic linker to load the library because of {PRELOAD}={os.environ.get(PRELOAD)!r}; the "
            "run's logs show the reason"
        )
    return getattr(process, name)
