"""Tells which tables a run must read as a whole from the checkpoint at which it starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from parallax_runner.checkpoints.checkpoint_files import read_sidecar
from parallax_runner.checkpoints.row_blocks import BLOCK_BYTES
from parallax_runner.plan.plan import Plan, VariablePlan
from parallax_runner.routes.registry import route_named

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def whole_tables_note(plan: Plan, single: SingleDeviceGraph, start: Path) -> str | None:
    """Returns a note about the largest table of which a process needs only some rows, but which the checkpoint does not
    contain in blocks of rows. Returns None if there is no such table. Raises CheckpointError if the checkpoint's
    sidecar is damaged."""
    names = {variable.name: variable.full_name for variable in single.variables}
    in_blocks = read_sidecar(start).block_rows.keys()
    whole = [
        planned for planned in plan.variables if _is_cut_and_large(planned) and names[planned.name] not in in_blocks
    ]
    if not whole:
        return None
    largest = max(whole, key=lambda planned: planned.size_bytes)
    who = "each worker" if route_named(largest.route).needs_all_ranks else "worker 0"
    return (
        f"checkpoint {start} contains «{names[largest.name]}» as a whole, so {who} needs memory for all of it "
        f"({largest.size_bytes / 1e6:.0f} MB) while it restores. The run's own checkpoints are restored in "
        "blocks of rows"
    )


def _is_cut_and_large(planned: VariablePlan) -> bool:
    is_cut = route_named(planned.route).needs_all_ranks or planned.partitions > 1
    return is_cut and planned.size_bytes > BLOCK_BYTES
