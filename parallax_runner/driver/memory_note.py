"""Adds the predicted memory of its processes to a plan, and a note if this machine has less."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from parallax_runner.config.cluster_size import spans_hosts
from parallax_runner.config.launchers import declared_by
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.held_bytes import exported_bytes
from parallax_runner.plan.format_bytes import format_bytes
from parallax_runner.plan.plan import Plan
from parallax_runner.plan.process_memory import ProcessMemory
from parallax_runner.planning.memory import predicted_memory
from parallax_runner.process.memory_limit import MemoryLimit, memory_limit


def with_memory(config: RunConfig, plan: Plan, *, is_keras: bool, limit: MemoryLimit | None = None) -> Plan:
    """Returns the plan with the predicted memory of its processes, and a note if all of them run on this machine and
    need more than it has. `is_keras` says whether the model is a Keras model, which is exported with its slots. `limit`
    is this process's own limit by default."""
    memory = predicted_memory(
        plan,
        copy_bytes=config.ckpt.copy_bytes,
        saves=config.ckpt.enabled,
        saves_deltas=config.ckpt.enabled and config.ckpt.delta_steps is not None,
        exported_bytes=exported_bytes(config, plan, is_keras=is_keras),
    )
    plan = dataclasses.replace(plan, memory=memory)
    limit = limit or memory_limit()
    if limit is None or not _runs_here(config):
        return plan
    total_bytes = sum(one.count * one.peak_bytes for one in memory)
    if total_bytes <= limit.size_bytes:
        return plan
    return dataclasses.replace(plan, notes=(*plan.notes, _note(memory, total_bytes, limit)))


def _runs_here(config: RunConfig) -> bool:
    """Returns whether all processes of the run are on this machine."""
    launcher = declared_by(config.cluster.launcher)
    return not launcher.runs_slurm_job and not launcher.processes_stand_by and not spans_hosts(config.cluster)


def _note(memory: Sequence[ProcessMemory], total_bytes: int, limit: MemoryLimit) -> str:
    largest = max(memory, key=lambda one: one.peak_bytes)
    return (
        f"the processes of this run may need {format_bytes(total_bytes)} together (each {largest.role} "
        f"{format_bytes(largest.peak_bytes)}), but {limit.of} allows {format_bytes(limit.size_bytes)}: the kernel may "
        "kill one of them; use more machines, smaller tables or a smaller ckpt.copy_bytes (docs/large-tables.md)"
    )
