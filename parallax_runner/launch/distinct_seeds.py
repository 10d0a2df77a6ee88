"""Gives each thread of TensorFlow another seed, so that a server does not take two requests for the same one.

The comments in `distinct_seeds.c` describe the reason.
"""

import zlib
from collections.abc import Mapping, Sequence

from parallax_runner.launch import preloaded


def seed_apart(role: str, index: int, addresses: Mapping[str, Sequence[str]]) -> None:
    """Gives this process seeds that no other process of the run has. `addresses` are the addresses of all processes by
    role; they are the same in all processes, and differ between runs. Raises LaunchError if the library is not loaded
    or is too old."""
    processes = [(other, number) for other, listed in sorted(addresses.items()) for number in range(len(listed))]
    key = zlib.crc32(repr(sorted(addresses.items())).encode())
    seeds = preloaded.function("parallax_distinct_seeds")
    seeds(key, processes.index((role, index)), len(processes))
