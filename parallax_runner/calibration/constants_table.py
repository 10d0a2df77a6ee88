"""Shows the constants of the cost model as a table."""

from __future__ import annotations

from rich.table import Table

from parallax_runner.planning.cost.constants import EXCHANGES, Constants


def constants_table(constants: Constants) -> Table:
    """Returns a table with a row for each exchange, followed by a row for each kind of work.

    The number after ± is the relative standard error of the fit.
    """
    table = Table(title=f"constants of the cost model: {constants.source}", title_justify="left")
    for column in ("", "overhead", "latency per round", "each", "speed"):
        table.add_column(column, justify="right" if column else "left")
    for name in EXCHANGES:
        exchange = getattr(constants, name)
        table.add_row(
            name,
            f"{1e6 * exchange.overhead_secs:.4g} µs{_error(constants, name, 'overhead_secs')}",
            f"{1e6 * exchange.latency_secs:.4g} µs{_error(constants, name, 'latency_secs')}",
            f"{1e6 * exchange.each_secs:.4g} µs{_error(constants, name, 'each_secs')}",
            _speed(exchange.secs_per_byte) + _error(constants, name, "secs_per_byte"),
        )
    table.add_section()
    for told, name in (
        ("accumulating a pushed gradient on a server", "server"),
        ("merging rows by ids", "merge"),
        ("dense update", "apply_dense"),
        ("update of rows", "apply_sparse"),
    ):
        secs_per_byte = getattr(constants, f"{name}_secs_per_byte")
        table.add_row(told, "", "", "", _speed(secs_per_byte) + _error(constants, name, "secs_per_byte"))
    for told, name in (("update of rows, per row", "apply_sparse"), ("requesting a row", "ask")):
        secs_per_row = getattr(constants, f"{name}_secs_per_row")
        table.add_row(told, "", "", f"{1e9 * secs_per_row:.4g} ns{_error(constants, name, 'secs_per_row')}", "")
    return table


def _speed(secs_per_byte: float) -> str:
    return "no limit seen" if secs_per_byte == 0 else f"{1e-6 / secs_per_byte:.4g} MB/s"


def _error(constants: Constants, name: str, field: str) -> str:
    found = constants.spread.get(f"{name}.{field}")
    return "" if found is None else f" ± {100 * found:.0f} %"
