"""The memory that is requested for a process in a job of a scheduler: a share more than what the plan predicts."""

from __future__ import annotations

import dataclasses
import math

from parallax_runner.plan.plan import Plan, VariablePlan
from parallax_runner.plan.process_memory import ProcessMemory
from parallax_runner.planning.memory import DRIVER, SERVER, predicted_memory

# A process that needs more than was requested is killed, so the request has room for what the plan does not know:
# activations, the rows of a step, initial values that are made whole.
MARGIN = 1.5


def for_smallest_size(plan: Plan, servers: int) -> Plan:
    """Returns the plan with memory that suffices for its processes on the smallest cluster, too. If the number of
    workers may change, a request must hold for all sizes, and fewer processes hold more each. `servers` is the smallest
    number of servers."""
    if not plan.worker_numbers:
        return plan
    least = min(servers, plan.servers)
    variables = tuple(_on_servers(variable, least) for variable in plan.variables)
    smallest = dataclasses.replace(plan, workers=plan.worker_numbers[0], servers=least, variables=variables)
    return dataclasses.replace(plan, memory=(*_memory(plan), *predicted_memory(smallest)))


def _on_servers(variable: VariablePlan, servers: int) -> VariablePlan:
    shards = tuple(dataclasses.replace(shard, server=shard.server % max(servers, 1)) for shard in variable.shards)
    return dataclasses.replace(variable, shards=shards)


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
