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


def balance(sizes_bytes: Sequence[int], servers: int, named: Sequence[int | None] = ()) -> list[int]:
    """The server of each item: of one that `named` has a server for that one; of the others, largest first, each time
    the least loaded (Graham 1969, LPT rule)."""
    wanted = list(named) or [None] * len(sizes_bytes)
    loads_bytes = [0] * servers
    for size_bytes, server in zip(sizes_bytes, wanted, strict=True):
        if server is not None:
            loads_bytes[server] += size_bytes
    heap = [(load_bytes, server) for server, load_bytes in enumerate(loads_bytes)]
    heapq.heapify(heap)
    chosen = [server or 0 for server in wanted]
    free = [item for item, server in enumerate(wanted) if server is None]
    for item in sorted(free, key=lambda item: (-sizes_bytes[item], item)):
        load_bytes, server = heapq.heappop(heap)
        chosen[item] = server
        heapq.heappush(heap, (load_bytes + sizes_bytes[item], server))
    return chosen
