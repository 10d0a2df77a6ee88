"""The memory that is requested for a process in a job of a scheduler: a share more than what the plan predicts."""

from __future__ import annotations

import math

from parallax_runner.plan.plan import Plan
from parallax_runner.plan.process_memory import ProcessMemory
from parallax_runner.planning.memory import DRIVER, SERVER, predicted_memory

# A process that needs more than was requested is killed, so the request has room for what the plan does not know:
# activations, the rows of a step, initial values that are made whole.
MARGIN = 1.5


def driver_mib(plan: Plan) -> int:
    """Returns the memory in MiB of a driver."""
    return _mib(_of(plan, DRIVER))


def process_mib(plan: Plan) -> int:
    """Returns the memory in MiB that suffices for each worker and each server."""
    return max(_mib(one) for one in _memory(plan) if one.role != DRIVER)


def worker_mib(plan: Plan) -> int:
    """Returns the memory in MiB that suffices for each worker."""
    return max(_mib(one) for one in _memory(plan) if one.role not in (DRIVER, SERVER))


def server_mib(plan: Plan) -> int:
    """Returns the memory in MiB of a server, or 0 if the plan has none."""
    return max((_mib(one) for one in _memory(plan) if one.role == SERVER), default=0)


def _memory(plan: Plan) -> tuple[ProcessMemory, ...]:
    return plan.memory or predicted_memory(plan)


def _of(plan: Plan, role: str) -> ProcessMemory:
    return next(one for one in _memory(plan) if one.role == role)


def _mib(one: ProcessMemory) -> int:
    return math.ceil(MARGIN * one.peak_bytes / 2**20)
