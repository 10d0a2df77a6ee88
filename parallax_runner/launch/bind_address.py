"""Binds the TCP sockets of a run's processes to one network interface, by the preloaded library.

The comments in `bind_address.c` describe how it works.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from parallax_runner.launch import preloaded

LOOPBACK = "127.0.0.1"
# If this variable contains an address, a process binds only to its own address on the route to that address, and not to
# all interfaces.
TOWARDS = "PARALLAX_BIND_TOWARDS"


def bind_towards(address: str) -> None:
    """Makes this process bind to its own address on the route to `address`. Raises LaunchError if the library is not
    loaded."""
    preloaded.function("parallax_bind_towards")(address.encode())


@contextmanager
def host_named(address: str) -> Iterator[None]:
    """Makes `address` the result of `gethostname()` in this process during the `with` block. Raises LaunchError if the
    library is not loaded."""
    name_host = preloaded.function("parallax_name_host")
    name_host(address.encode())
    try:
        yield
    finally:
        name_host(None)


def check_loaded() -> None:
    """Raises LaunchError if the library should be loaded into this process but is not."""
    if TOWARDS in os.environ:
        preloaded.function("parallax_bind_towards")
