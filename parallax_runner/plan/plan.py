"""The noun that planning makes: how each variable's gradient travels and where the variable lives."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from parallax_runner.files.whole import write_whole
from parallax_runner.plan.comm_options import CommOptions

FORMAT = 1
FILE_NAME = "plan.json"


class Route(StrEnum):
    """The names of the built-in routes (planning/routes/); `LOCAL` for what stays on its rank."""

    ALLREDUCE = "allreduce"
    ALLGATHER = "allgather"
    PS = "ps"
    ALLTOALL = "alltoall"
    LOCAL = "local"


@dataclass(frozen=True)
class Shard:
    """`rows` rows of a variable, each `step`-th from row `offset` on (a scalar counts as one row), on server number
    `server`."""

    offset: int
    rows: int
    server: int
    step: int = 1


@dataclass(frozen=True)
class RouteCost:
    """What a variable would cost by one route, a step: bytes as in `sent_bytes_per_step`, seconds on the links, waiting
    for messages, and working on what came (adding, merging, updating). `before_secs` of all three come before there are
    values to compute with, the rest when there is a gradient."""

    route: str
    sent_bytes: int
    link_secs: float
    latency_secs: float
    work_secs: float
    before_secs: float = 0.0

    @property
    def secs(self) -> float:
        """All three."""
        return self.link_secs + self.latency_secs + self.work_secs


@dataclass(frozen=True)
class WholeTable:
    """A step moves all rows of a variable in shards, or of a slot, to or from a worker for the op of this name."""

    op: str
    size_bytes: int


@dataclass(frozen=True)
class VariablePlan:
    """One variable of the plan.

    `sent_bytes_per_step` is what the cluster sends for this variable in a step, divided by the number of replicas; for
    a sparse variable an upper bound, since only running tells how many ids are distinct; None where the number of ids
    is unknown too, and the mean where rows were measured. `reason` is one sentence for people. `costs` are those of all
    routes that it could take; `alpha` is the fraction of rows that a step touches, merged over ranks, None if unknown.
    `rows_written` is «touched» where updates write only rows that a step touches, «all» where they write all, and empty
    where there is no gradient. What `whole_tables` names travels beside `sent_bytes_per_step`. `is_ahead`: its rows are
    asked for one step before they are needed. `is_behind`: gradients of rows that the next step does not touch travel
    during that step.
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
    is_behind: bool = False

    @property
    def partitions(self) -> int:
        """Into how many placed pieces the variable is split; 1 where it is not."""
        return max(1, len(self.shards))


@dataclass(frozen=True)
class Moved:
    """So many ops in the scope of `device`, which no process has, run on `to` (`cluster.soft_placement`)."""

    ops: int
    device: str
    to: str

    def __str__(self) -> str:
        count = "1 op moves" if self.ops == 1 else f"{self.ops} ops move"
        return f"soft placement: {count} from {self.device}, which does not exist, to {self.to}"


@dataclass(frozen=True)
class Prediction:
    """Milliseconds of a step by the cost model: its critical path, computing, exchanges and updates, and of these what
    is paid once for each route that is taken. What the path is shorter than computing and exchanges
    together may overlap. None where a part is unknown."""

    step_ms: float | None = None
    compute_ms: float | None = None
    exchange_ms: float | None = None
    shared_ms: float | None = None


@dataclass(frozen=True)
class Plan:
    """The whole plan; `plan.json` is this, field by field, those of `options` among them. `servers` is 0 where no route
    needs one.

    `workers` are processes; each runs `replicas_per_worker` replicas of the single-device graph. `counters`, variables
    that count updates, are on server 0 where steps do not wait for all workers. `rows_measured` is the date on which
    fractions and bytes of sparse variables were measured, None where they are bounds. `predicted` is what a step should
    take, and `constants` says where the model's constants are from. `moved` are the ops that do not run on the device
    that the model's scopes name.
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
    format: int = FORMAT

    @property
    def is_alone(self) -> bool:
        """Whether one process does everything, and exchanges nothing."""
        return self.comm == "local"

    @property
    def replicas(self) -> int:
        """How many replicas of the graph there are in all."""
        return self.workers * self.replicas_per_worker

    @property
    def contributors(self) -> int:
        """How many replicas' gradients make a synchronous step, which takes their mean."""
        return self.replicas - self.options.backup_workers

    @property
    def aggregates_locally(self) -> bool:
        """Whether a worker adds up its replicas' gradients before it pushes."""
        return self.options.ps.local_aggregation and self.options.sync and self.replicas_per_worker > 1

    @property
    def pushes(self) -> int:
        """How many pushes to its server make a step's gradient of a variable."""
        return self.workers if self.aggregates_locally else self.contributors

    def by_route(self, route: str) -> tuple[VariablePlan, ...]:
        """The variables that travel by `route`."""
        return tuple(variable for variable in self.variables if variable.route == route)

    @property
    def sent_bytes_per_step(self) -> int | None:
        """The sum over all variables; None where one of them is unknown."""
        known = [variable.sent_bytes_per_step for variable in self.variables]
        return None if None in known else sum(number for number in known if number is not None)


def save(plan: Plan, path: Path) -> None:
    """Writes `plan` as JSON."""
    write_whole(path, to_json(plan) + "\n")


def to_json(plan: Plan) -> str:
    """The whole plan, for `of_json`; the options stand among its own fields."""
    first = ("comm", "workers", "servers")
    flat = {**{name: getattr(plan, name) for name in first}, "average_sparse": plan.options.average_sparse}
    for name, value in dataclasses.asdict(plan).items():
        flat |= value if name == "options" else {name: value}
    return json.dumps(flat, indent=1)


def load(path: Path) -> Plan:
    """Reads what `save` wrote."""
    return of_json(path.read_text(encoding="utf-8"))


def of_json(text: str) -> Plan:
    """The plan that `to_json` has written."""
    fields = json.loads(text)
    variables = tuple(_variable(entry) for entry in fields.pop("variables"))
    for name in ("notes", "counters"):
        fields[name] = tuple(fields[name])
    fields["moved"] = tuple(Moved(**moved) for moved in fields["moved"])
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
