"""Splits rows into shards and spreads shards over servers by bytes held and by bytes served."""

from __future__ import annotations

from collections.abc import Sequence


def split_rows(rows: int, partitions: int) -> list[int]:
    """How many rows each of `partitions` shards has: row i is in shard i mod partitions."""
    return [len(range(shard, rows, partitions)) for shard in range(partitions)]


def balance(
    sizes_bytes: Sequence[int],
    servers: int,
    named: Sequence[int | None] = (),
    served_bytes: Sequence[float] = (),
) -> list[int]:
    """The server of each item: of one that `named` has a server for that one; of the others, largest first, each time
    the least loaded (Graham 1969, LPT rule).

    With `served_bytes`, what each item moves in a step, a load is the worse of two: the share of all bytes that are
    held, and the share of all that are served. Then no server holds or serves more than twice the mean and the largest
    share of an item.
    """
    wanted = list(named) or [None] * len(sizes_bytes)
    items: list[tuple[float, float]] = [(size_bytes, 0) for size_bytes in sizes_bytes]
    if served_bytes:
        items = list(zip(_shares(sizes_bytes), _shares(served_bytes), strict=True))
    loads: list[tuple[float, float]] = [(0, 0)] * servers
    chosen = [server or 0 for server in wanted]
    for item, server in enumerate(wanted):
        if server is not None:
            loads[server] = _more(loads[server], items[item])
    free = [item for item, server in enumerate(wanted) if server is None]
    for item in sorted(free, key=lambda item: (-max(items[item]), -sizes_bytes[item], item)):
        after = [_more(load, items[item]) for load in loads]
        chosen[item] = min(range(servers), key=lambda server: (max(after[server]), sum(after[server]), server))
        loads[chosen[item]] = after[chosen[item]]
    return chosen


def _shares(amounts: Sequence[float]) -> list[float]:
    total = sum(amounts)
    return [amount / total if total else 0.0 for amount in amounts]


def _more(load: tuple[float, float], item: tuple[float, float]) -> tuple[float, float]:
    return load[0] + item[0], load[1] + item[1]
