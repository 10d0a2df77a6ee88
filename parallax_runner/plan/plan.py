"""The result of planning: how each variable's gradient is exchanged, and where the variable is placed."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from parallax_runner.files.regular import read_regular
from parallax_runner.files.whole import write_whole
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.plan.process_memory import ProcessMemory
from parallax_runner.routes.traits import traits_of_route

FORMAT = 1
FILE_NAME = "plan.json"


class Route(StrEnum):
    """The names of the built-in routes (routes/). `LOCAL` exchanges nothing."""

    ALLREDUCE = "allreduce"
    ALLGATHER = "allgather"
    PS = "ps"
    ALLTOALL = "alltoall"
    LOCAL = "local"


@dataclass(frozen=True)
class Shard:
    """The `rows` rows of a variable that server number `server` stores: every `step`-th row, starting at row `offset`.
    A scalar is treated as one row."""

    offset: int
    rows: int
    server: int
    step: int = 1


@dataclass(frozen=True)
class RouteCost:
    """The costs of a variable in a step on one route.

    `sent_bytes` is counted in the same way as `sent_bytes_per_step`. The time is spent on the links, on waiting for
    messages, and on processing received data (adding, merging, updating). `before_secs` is the part of the sum that is
    spent before the values are available. `aside_secs` is the part that is spent during the previous step, for rows
    that are fetched in advance. The rest is spent after the gradient is available.
    """

    route: str
    sent_bytes: int
    link_secs: float
    latency_secs: float
    work_secs: float
    before_secs: float = 0.0
    aside_secs: float = 0.0

    @property
    def secs(self) -> float:
        """The total number of seconds."""
        return self.link_secs + self.latency_secs + self.work_secs

    @property
    def after_secs(self) -> float:
        """The seconds that are spent after the gradient is available, within the step."""
        return self.secs - self.before_secs - self.aside_secs

    @property
    def own_secs(self) -> float:
        """The seconds that are spent within the step."""
        return self.secs - self.aside_secs


@dataclass(frozen=True)
class WholeTable:
    """An op that makes a step move all rows of a sharded variable or slot to or from a worker."""

    op: str
    size_bytes: int


@dataclass(frozen=True)
class VariablePlan:
    """One variable in the plan.

    `sent_bytes_per_step` is the number of bytes that the cluster sends for this variable in a step, divided by the
    number of replicas. For a sparse variable, it is a mean if rows were measured. Otherwise, it is an upper bound that
    assumes distinct ids, or None if the number of ids is also unknown. `reason` is one sentence. `costs` contains the
    costs of all routes that the variable could take. `alpha` is the fraction of rows that all ranks together touch in a
    step, or None if the fraction is unknown.

    `rows_written` is «touched» if updates write only rows that a step touches, «all» if updates write all rows, and
    empty without a gradient. The transfers in `whole_tables` are not included in `sent_bytes_per_step`. `is_ahead` is
    set if the variable's rows are requested one step before they are needed. `map_of` names the table of which the
    variable is a part of the map of keys, if it is one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    gradient: str
    route: str
    shards: tuple[Shard, ...]
    slots: tuple[str, ...]
    sent_bytes_per_step: int | None
    reason: str
    costs: tuple[RouteCost, ...] = ()
    alpha: float | None = None
    rows_written: str = ""
    whole_tables: tuple[WholeTable, ...] = ()
    is_ahead: bool = False
    map_of: str | None = None

    @property
    def partitions(self) -> int:
        """The number of shards of the variable, or 1 if the variable is not sharded."""
        return max(1, len(self.shards))


@dataclass(frozen=True)
class Moved:
    """Ops in the scope of a missing `device`, which run on the device `to` instead (`cluster.soft_placement`)."""

    ops: int
    device: str
    to: str

    def __str__(self) -> str:
        count = "1 op moves" if self.ops == 1 else f"{self.ops} ops move"
        return f"soft placement: {count} from {self.device}, which does not exist, to {self.to}"


@dataclass(frozen=True)
class Prediction:
    """The times in milliseconds that the cost model predicts for a step. Unknown times are None.

    `step_ms` is the critical path, `compute_ms` the computation, and `exchange_ms` the exchanges and updates.
    `shared_ms` is the part of `exchange_ms` that is paid once for each route in use. The step can be shorter than the
    computation and the exchanges together, because they overlap.
    """

    step_ms: float | None = None
    compute_ms: float | None = None
    exchange_ms: float | None = None
    shared_ms: float | None = None


@dataclass(frozen=True)
class Plan:
    """The whole plan. `plan.json` has the same fields, but the fields of `options` are at the top level.

    `workers` is the number of worker processes, and each runs `replicas_per_worker` replicas of the single-device
    graph. `servers` is 0 if no route needs a server. `counters` are variables that count updates. These variables are
    on server 0 if steps do not wait for all workers. `rows_measured` is the date when fractions and bytes of sparse
    variables were measured, or None if they are upper bounds. `predicted` contains the predicted times of a step, and
    `constants` states the source of the model's constants. `moved` contains the ops that do not run on the device named
    by the model's scopes. `differ_unmerged` contains the variables that stock TensorFlow and Keras update differently
    if a batch repeats an id, because they do not merge the rows of that id. `worker_numbers` are the numbers of workers
    with which the run may go on if its cluster changes size, in ascending order; it is empty if it may not. `memory` is
    the predicted memory of the processes.
    """

    comm: str
    workers: int
    servers: int
    fingerprint: str
    variables: tuple[VariablePlan, ...]
    notes: tuple[str, ...]
    replicas_per_worker: int = 1
    options: CommOptions = field(default_factory=CommOptions)
    counters: tuple[str, ...] = ()
    rows_measured: str | None = None
    predicted: Prediction = Prediction()
    constants: str = ""
    moved: tuple[Moved, ...] = ()
    differ_unmerged: tuple[str, ...] = ()
    worker_numbers: tuple[int, ...] = ()
    memory: tuple[ProcessMemory, ...] = ()
    format: int = FORMAT

    @property
    def is_alone(self) -> bool:
        """Whether one process does all of the work and exchanges nothing."""
        return self.workers == 1 and all(traits_of_route(one.route).sends_nothing for one in self.variables)

    @property
    def replicas(self) -> int:
        """The number of replicas of the graph in all workers together."""
        return self.workers * self.replicas_per_worker

    @property
    def contributors(self) -> int:
        """The number of replicas whose gradients a synchronous step averages."""
        return self.replicas - self.options.backup_workers

    @property
    def aggregates_locally(self) -> bool:
        """Whether a worker sums the gradients of its replicas before it pushes the sum."""
        return self.options.ps.local_aggregation and self.options.sync and self.replicas_per_worker > 1

    @property
    def pushes(self) -> int:
        """The number of pushes that a server sums for a variable's gradient in a step."""
        return self.workers if self.aggregates_locally else self.contributors

    def by_route(self, route: str) -> tuple[VariablePlan, ...]:
        """Returns the variables that take `route`."""
        return tuple(variable for variable in self.variables if variable.route == route)

    def placing_route(self, variable: VariablePlan) -> str:
        """Returns the route that decides which processes have the rows of a variable. The buckets of a map of keys are
        placed like the rows of its table."""
        if variable.map_of is None:
            return variable.route
        (table,) = [one for one in self.variables if one.name == variable.map_of]
        return table.route

    @property
    def sent_bytes_per_step(self) -> int | None:
        """The sum of `sent_bytes_per_step` over all variables, or None if any of these numbers is unknown."""
        known = [variable.sent_bytes_per_step for variable in self.variables]
        return None if None in known else sum(number for number in known if number is not None)


def save(plan: Plan, path: Path) -> None:
    """Writes `plan` as JSON."""
    write_whole(path, to_json(plan) + "\n")


def to_json(plan: Plan) -> str:
    """Returns the plan as JSON for `of_json`, with the options at the top level."""
    first = ("comm", "workers", "servers")
    flat = {**{name: getattr(plan, name) for name in first}, "average_sparse": plan.options.average_sparse}
    for name, value in dataclasses.asdict(plan).items():
        flat |= value if name == "options" else {name: value}
    return json.dumps(flat, indent=1)


def load(path: Path) -> Plan:
    """Reads the plan that `save` wrote."""
    return of_json(read_regular(path))


def of_json(text: str) -> Plan:
    """Parses the JSON that `to_json` returned."""
    fields = json.loads(text)
    variables = tuple(_variable(entry) for entry in fields.pop("variables"))
    for name in ("notes", "counters", "differ_unmerged", "worker_numbers"):
        fields[name] = tuple(fields[name])
    fields["moved"] = tuple(Moved(**moved) for moved in fields["moved"])
    fields["memory"] = tuple(ProcessMemory(**one) for one in fields["memory"])
    options = CommOptions.of_json({option.name: fields.pop(option.name) for option in dataclasses.fields(CommOptions)})
    return Plan(variables=variables, options=options, predicted=Prediction(**fields.pop("predicted")), **fields)


def _variable(entry: dict[str, Any]) -> VariablePlan:
    return VariablePlan(
        **entry
        | {
            "shape": tuple(entry["shape"]),
            "shards": tuple(Shard(**shard) for shard in entry["shards"]),
            "slots": tuple(entry["slots"]),
            "costs": tuple(RouteCost(**cost) for cost in entry["costs"]),
            "whole_tables": tuple(WholeTable(**one) for one in entry["whole_tables"]),
        }
    )
