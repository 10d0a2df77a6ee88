"""Checks that ranks can merge the variables that declare an aggregation."""

from __future__ import annotations

from parallax_runner.errors import PlanError
from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def check_merged(single: SingleDeviceGraph, *, steps_are_common: bool) -> None:
    """Raises PlanError if the ranks do not run in lockstep and a variable declares the aggregation «sum» or «mean»."""
    if single.merged and not steps_are_common:
        first = single.merged[0]
        raise PlanError(
            f"variable «{first.name}» declares aggregation={first.aggregation}: ranks merge its values at the end "
            "of each step, but with comm.sync=false or comm.ps.backup_workers they do not run in lockstep; choose "
            "comm.sync=true without backup workers, or do not declare an aggregation"
        )
