"""Predicts the peak memory of a plan's processes. docs/large-tables.md compares predictions with measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence

from parallax_runner.plan.plan import Plan, VariablePlan
from parallax_runner.plan.process_memory import ProcessMemory
from parallax_runner.routes.registry import route_named

# The peak memory of processes with small variables: TensorFlow 2.21, Keras and Open MPI 5, measured on 2026-11-29 with
# experiment=quick (563, 693 and 397 MB), rounded up.
DRIVER_BYTES, WORKER_BYTES, SERVER_BYTES = 600 << 20, 750 << 20, 450 << 20
# Own rows and slots need this much more memory than their size, at the start and in steps.
OVERHEAD = 1.12
# A joint save needs this much if a rank's variables are small.
LEAST_JOINT_SAVE_BYTES = 100 << 20
# The copies that the chief holds of variables while it writes them: of its own, of those that one server has whole, and
# of those whose shards it writes in blocks. A server holds one more copy of its rows while they are read.
WHOLE_COPIES, SERVED_COPIES, SHARDED_COPIES = 2, 3, 1
CHIEF, WORKER, SERVER, DRIVER = "worker 0", "worker", "server", "driver"


def predicted_memory(
    plan: Plan,
    *,
    copy_bytes: int | None = None,
    saves: bool = True,
    saves_deltas: bool = False,
    exported_bytes: int = 0,
) -> tuple[ProcessMemory, ...]:
    """Returns the predicted memory of the driver, the chief, the other workers and the servers of a plan.

    `copy_bytes` is `ckpt.copy_bytes`, `saves` says whether the run writes checkpoints, `saves_deltas` whether it also
    writes deltas, and `exported_bytes` is the size of what the driver exports at the end. The prediction leaves out
    what depends on examples, such as activations and the rows that a step touches, and initial values that are made
    whole, which the plan names.
    """
    exporting_bytes = DRIVER_BYTES + WHOLE_COPIES * exported_bytes
    found = [ProcessMemory(DRIVER, 1, DRIVER_BYTES, DRIVER_BYTES, exporting_bytes)]
    save_bytes = _chief_save_bytes(plan, copy_bytes) if saves else 0
    changes_bytes = sum(_changes_bytes(plan, one) for one in plan.variables) if saves_deltas else 0
    found.append(_worker(plan, CHIEF, 1, save_bytes, changes_bytes))
    if plan.workers > 1:
        save_bytes = _joint_save_bytes(plan, copy_bytes) if saves else 0
        spread_bytes = sum(_changes_bytes(plan, one) for one in _spread(plan)) if saves_deltas else 0
        found.append(_worker(plan, WORKER, plan.workers - 1, save_bytes, spread_bytes))
    if plan.servers:
        found.append(_server(plan, saves=saves))
    return tuple(found)


def _worker(plan: Plan, role: str, count: int, save_bytes: int, changes_bytes: int) -> ProcessMemory:
    """Returns the memory of workers that need `save_bytes` for a save, and `changes_bytes` to know what has changed
    since a checkpoint."""
    own_bytes = sum(_own_bytes(plan, one) for one in plan.variables)
    # A dense gradient exists as a whole, and a second time while it is exchanged.
    gradients_bytes = 2 * sum(one.size_bytes for one in plan.variables if one.gradient == "dense")
    start_bytes = WORKER_BYTES + math.ceil(OVERHEAD * own_bytes) + changes_bytes
    step_bytes = start_bytes + gradients_bytes
    return ProcessMemory(role, count, start_bytes, step_bytes, step_bytes + save_bytes)


def _server(plan: Plan, *, saves: bool) -> ProcessMemory:
    """Returns the memory of the server with the most rows."""
    largest_bytes = max(_bytes_of_server(plan.variables, server) for server in range(plan.servers))
    step_bytes = SERVER_BYTES + math.ceil(OVERHEAD * largest_bytes)
    save_bytes = largest_bytes if saves else 0
    return ProcessMemory(SERVER, plan.servers, step_bytes, step_bytes, step_bytes + save_bytes)


def with_slots_bytes(variable: VariablePlan) -> int:
    """Returns the bytes of a whole variable and its slots."""
    return variable.size_bytes * (1 + len(variable.slots))


def _own_bytes(plan: Plan, variable: VariablePlan) -> int:
    """Returns the bytes of a variable and its slots that each worker keeps."""
    route = route_named(plan.placing_route(variable))
    if route.on_servers:
        return 0
    if route.has_owners:
        return math.ceil(with_slots_bytes(variable) / plan.workers)
    return with_slots_bytes(variable)


def _changes_bytes(plan: Plan, variable: VariablePlan) -> int:
    """Returns what a worker that tells the changes of a variable needs to know them: a byte for each of its rows, or a
    copy of its part of a map (checkpoints/delta_ops.py)."""
    if variable.map_of is not None:
        return _own_bytes(plan, variable)
    if variable.gradient != "sparse" or variable.rows_written == "all":
        return 0
    is_spread = route_named(variable.route).has_owners
    return math.ceil(variable.shape[0] / plan.workers) if is_spread else variable.shape[0]


def _bytes_of_server(variables: Sequence[VariablePlan], server: int) -> int:
    total = 0
    for variable in variables:
        rows = sum(shard.rows for shard in variable.shards)
        own_rows = sum(shard.rows for shard in variable.shards if shard.server == server)
        if rows:
            total += math.ceil(with_slots_bytes(variable) * own_rows / rows)
    return total


def _chief_save_bytes(plan: Plan, copy_bytes: int | None) -> int:
    """Returns what a save needs on the chief: its part of a joint save, and copies of all other variables."""
    total = _joint_save_bytes(plan, copy_bytes)
    for variable in plan.variables:
        if _is_spread(plan, variable):
            continue
        total += _copies(variable) * with_slots_bytes(variable)
    return total


def _copies(variable: VariablePlan) -> int:
    """Returns how many copies of a variable the chief holds while it writes the variable."""
    if len(variable.shards) > 1:
        return SHARDED_COPIES
    return SERVED_COPIES if route_named(variable.route).on_servers else WHOLE_COPIES


def _joint_save_bytes(plan: Plan, copy_bytes: int | None) -> int:
    """Returns what a joint save needs on each rank, or 0 if no variable is spread over the ranks."""
    spread = _spread(plan)
    if not spread or plan.workers == 1:
        return 0
    largest_bytes = max(math.ceil(one.size_bytes / plan.workers) for one in spread)
    return max(LEAST_JOINT_SAVE_BYTES, largest_bytes if copy_bytes is None else copy_bytes)


def _spread(plan: Plan) -> list[VariablePlan]:
    return [variable for variable in plan.variables if _is_spread(plan, variable)]


def _is_spread(plan: Plan, variable: VariablePlan) -> bool:
    route = route_named(plan.placing_route(variable))
    return route.has_owners and not route.on_servers
