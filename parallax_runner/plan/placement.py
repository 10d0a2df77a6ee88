"""Splits rows into shards and spreads shards over servers by bytes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def split_rows(rows: int, partitions: int) -> list[tuple[int, int]]:
    """(offset, rows) of each of `partitions` ranges that differ by at most one row, the longer ones first."""
    small, longer = divmod(rows, partitions)
    sizes = [small + 1] * longer + [small] * (partitions - longer)
    offsets = [sum(sizes[:index]) for index in range(partitions)]
    return list(zip(offsets, sizes, strict=True))


def balance(sizes_bytes: Sequence[int], servers: int) -> list[int]:
    """The server of each item: largest first, each to the least loaded server (Graham 1969, LPT rule)."""
    loads = [(0, server) for server in range(servers)]
    chosen = [0] * len(sizes_bytes)
    for item in sorted(range(len(sizes_bytes)), key=lambda item: (-sizes_bytes[item], item)):
        load, server = heapq.heappop(loads)
        chosen[item] = server
        heapq.heappush(loads, (load + sizes_bytes[item], server))
    return chosen
