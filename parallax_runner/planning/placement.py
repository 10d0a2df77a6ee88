"""Splits rows into shards, and distributes shards over servers by bytes held and bytes served."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.plan.comm_options import PsOptions
from parallax_runner.plan.format_bytes import format_bytes
from parallax_runner.plan.plan import Plan, Shard
from parallax_runner.planning.cost.measured import Measured, RowStatistics
from parallax_runner.planning.cost.touched import Touched
from parallax_runner.planning.cost.traffic import traffic
from parallax_runner.planning.cut import pieces_of

# A plan gets a note if its fullest server holds more than this multiple of the bytes on the fullest server of a
# placement that balances only held bytes.
MOST_HELD = 1.25
HELD_BYTES_THAT_MATTER = 100_000_000
# A dense variable is split so that each shard accounts for at most this fraction of the average number of bytes that a
# server exchanges per step.
LARGEST_SHARE = 0.5
# Dense variables are not split into smaller pieces, because the additional messages would cost more time than the
# servers save.
SMALLEST_PIECE_BYTES = 128_000
# A server's fraction of all bytes held, and its fraction of all bytes served in a step.
Load = tuple[float, float]


def place(
    variables: Sequence[VariableInfo], servers: int, measured: Measured | None = None, ps: PsOptions | None = None
) -> dict[str, tuple[Shard, ...]]:
    """Returns the shards of each variable on the servers.

    `planning/cut.py` decides the number of pieces, and the smallest possible piece is a row. Servers are balanced by
    bytes held and bytes served.
    """
    ps = ps or PsOptions()
    pieces = _pieces(variables, servers, measured, ps)
    shards = {variable.name: _shards(variable, pieces[variable.name]) for variable in variables}
    held, served, named = [], [], []
    for variable in variables:
        own = shards[variable.name]
        held += [_held_bytes(variable, shard) for shard in own]
        served += served_bytes(variable, own, measured, ps)
        named += [_named_server(variable, servers)] * len(own)
    chosen = iter(balance(held, served, servers, named))
    return {
        name: tuple(Shard(shard.offset, shard.rows, server=next(chosen), step=shard.step) for shard in own)
        for name, own in shards.items()
    }


def held_unevenly(variables: Sequence[VariableInfo], shards: Mapping[str, Sequence[Shard]], servers: int) -> str | None:
    """Returns a note if a server holds much more than it would hold if only held bytes were balanced."""
    pieces = [(variable, shard) for variable in variables for shard in shards[variable.name]]
    sizes = [_held_bytes(variable, shard) for variable, shard in pieces]
    named = [_named_server(variable, servers) for variable, _ in pieces]
    held = _sums(sizes, [shard.server for _, shard in pieces], servers)
    least = _sums(sizes, balance(sizes, sizes, servers, named), servers)
    if max(held, default=0) <= max(HELD_BYTES_THAT_MATTER, MOST_HELD * max(least, default=0)):
        return None
    can_be_cut = any(variable.gradient is GradientKind.SPARSE for variable in variables)
    return (
        f"server {held.index(max(held))} holds {format_bytes(max(held))} of {format_bytes(sum(held))} (including "
        "optimizer slots), because placement also balances the bytes transferred per step"
        f"{'; splitting variables into more pieces may balance both' if can_be_cut else ''}"
    )


def _sums(sizes: Sequence[int], chosen: Sequence[int], servers: int) -> list[int]:
    sums = [0] * servers
    for size, server in zip(sizes, chosen, strict=True):
        sums[server] += size
    return sums


def _held_bytes(variable: VariableInfo, shard: Shard) -> int:
    return shard.rows * variable.row_bytes * (1 + len(variable.slots))


def rows_matter(plan: Plan) -> bool:
    """Returns whether a measurement of touched rows could improve the balance between servers.

    A better balance requires several variables on servers, at least one of them sparse. It also requires a sparse
    variable that is unevenly distributed, or a dense variable that could have its own server.
    """
    served = [variable for variable in plan.variables if variable.shards]
    if plan.servers <= 1 or len(served) <= 1:
        return False
    kinds = {variable.gradient for variable in served}
    if GradientKind.SPARSE not in kinds:
        return False
    if GradientKind.DENSE in kinds:
        return True
    return any(_is_uneven(one.shards, plan.servers) for one in served if one.gradient == GradientKind.SPARSE)


def _is_uneven(shards: Sequence[Shard], servers: int) -> bool:
    """Returns whether some servers have more of the shards than others."""
    by_server = Counter(shard.server for shard in shards)
    return len({by_server[server] for server in range(servers)}) > 1


def served_bytes(
    variable: VariableInfo, shards: Sequence[Shard], measured: Measured | None, ps: PsOptions
) -> list[float]:
    """Returns the number of bytes that each shard receives from and sends to one rank in a step.

    Each measured hot row counts as often as it is touched, and the other rows count equally. Without a measurement, the
    upper bound is divided equally among all rows. All rows of a dense variable are sent.
    """
    found = None if measured is None else measured.of(variable.name)
    rows = [shard.rows for shard in shards]
    bound = sum(rows) if variable.gradient_rows is None else min(sum(rows), variable.gradient_rows)
    touched = _shares(rows) if found is None else _touched(shards, found)
    travel = bound if found is None else sum(touched)
    looks_up_there = ps.boundary_between_workers_and_servers
    parts = traffic(variable, Touched(travel, travel, is_bound=found is None), looks_up_there=looks_up_there)
    of_touched, of_rows = _shares(touched), _shares(rows)
    pulled = of_touched if looks_up_there else of_rows
    return [
        (parts.asked + parts.pushed) * share + parts.pulled * pulled_share
        for share, pulled_share in zip(of_touched, pulled, strict=True)
    ]


def _touched(shards: Sequence[Shard], found: RowStatistics) -> list[float]:
    """Returns the number of rows in each shard that a rank touches in a step. Uses the counts of the hottest rows."""
    step = shards[0].step
    hot_rows, hot_touched = [0] * step, [0.0] * step
    for row, count in found.hot:
        hot_rows[row % step] += 1
        hot_touched[row % step] += count / found.samples
    others = max(0.0, found.distinct - sum(hot_touched)) / max(1, found.rows - len(found.hot))
    return [hot_touched[one.offset] + others * (one.rows - hot_rows[one.offset]) for one in shards]


def _pieces(
    variables: Sequence[VariableInfo], servers: int, measured: Measured | None, ps: PsOptions
) -> dict[str, int]:
    """Returns the number of shards of each variable.

    A dense variable is split only if it would make its server too busy. Each shard then accounts for at most
    LARGEST_SHARE of the average number of bytes that a server exchanges per step, unless the shards would become
    smaller than SMALLEST_PIECE_BYTES.
    """
    found = {one.name: pieces_of(one) if one.gradient is GradientKind.SPARSE else 1 for one in variables}
    served = {one.name: sum(served_bytes(one, _shards(one, found[one.name]), measured, ps)) for one in variables}
    largest = LARGEST_SHARE * sum(served.values()) / max(1, servers)
    for one in variables:
        can_be_cut = one.gradient is GradientKind.DENSE and one.is_updated_in_parts and one.server is None
        if can_be_cut and served[one.name] > largest:
            wanted = min(servers, math.ceil(served[one.name] / largest))
            found[one.name] = max(1, min(wanted, one.size_bytes // SMALLEST_PIECE_BYTES))
    return found


def _shards(variable: VariableInfo, pieces: int) -> list[Shard]:
    """Returns the shards of a variable, with server 0 as a placeholder."""
    rows = variable.shape[0] if variable.shape else 1
    pieces = max(1, min(rows, pieces))
    return [Shard(number, part, server=0, step=pieces) for number, part in enumerate(split_rows(rows, pieces))]


def _named_server(variable: VariableInfo, servers: int) -> int | None:
    """Returns the server that the variable's device scope names, or None if no such server exists. Another check
    reports servers that do not exist."""
    return variable.server if variable.server is not None and variable.server < servers else None


def split_rows(rows: int, partitions: int) -> list[int]:
    """Returns the number of rows in each of `partitions` shards. Row i is in shard i mod partitions."""
    return [len(range(shard, rows, partitions)) for shard in range(partitions)]


def balance(
    held_bytes: Sequence[int],
    served_bytes: Sequence[float],
    servers: int,
    named: Sequence[int | None] = (),
) -> list[int]:
    """Returns the server of each item.

    An item with a server in `named` is assigned to that server. The other items, largest first, are each assigned to
    the least loaded server (Graham 1969, LPT rule).

    A server's load is the larger of two fractions: its fraction of all bytes held, and its fraction of all bytes served
    in a step. No server holds or serves more than twice the mean plus the largest item. Items are assigned twice, once
    in the order of bytes served and once in the order of the larger of their two fractions, and the better result is
    used. If both results are equal, the result that distributes served bytes more evenly is used.
    """
    wanted = list(named) or [None] * len(held_bytes)
    items = list(zip(_shares(held_bytes), _shares(served_bytes), strict=True))
    free = [item for item, server in enumerate(wanted) if server is None]
    by_served = sorted(free, key=lambda item: (-served_bytes[item], -held_bytes[item]))
    by_worse = sorted(free, key=lambda item: (-max(items[item]), -held_bytes[item]))
    outcomes = [_assign(items, servers, wanted, order) for order in (by_served, by_worse)]
    chosen, _ = min(outcomes, key=lambda outcome: _worst(outcome[1]))
    return chosen


def _assign(
    items: Sequence[Load], servers: int, wanted: Sequence[int | None], order: Sequence[int]
) -> tuple[list[int], list[Load]]:
    """Returns the server of each item and the loads of the servers.

    Items for which no server was requested are assigned in `order`.
    """
    loads = [(0.0, 0.0)] * servers
    chosen = [server or 0 for server in wanted]
    for item, server in enumerate(wanted):
        if server is not None:
            loads[server] = _more(loads[server], items[item])
    for item in order:
        after = [_more(load, items[item]) for load in loads]
        chosen[item] = min(range(servers), key=lambda server: (max(after[server]), sum(after[server]), server))
        loads[chosen[item]] = after[chosen[item]]
    return chosen, loads


def _worst(loads: Sequence[Load]) -> Load:
    """Returns the largest fraction of either kind, and the largest fraction of bytes served."""
    return max(map(max, loads), default=0.0), max((served for _, served in loads), default=0.0)


def _shares(amounts: Sequence[float]) -> list[float]:
    total = sum(amounts)
    return [amount / total if total else 0.0 for amount in amounts]


def _more(load: Load, item: Load) -> Load:
    return load[0] + item[0], load[1] + item[1]
