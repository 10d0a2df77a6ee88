"""The input to planning."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax_runner.analysis.variable_info import VariableInfo
from parallax_runner.config.comm_mode import CommMode, choices, mode_with
from parallax_runner.config.schema import RoutesConfig
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.planning.choose import Choice
from parallax_runner.planning.cost.measured import Measured
from parallax_runner.planning.cut import Cut


@dataclass(frozen=True)
class PlanRequest:
    """A graph's variables and fingerprint, and the cluster that trains the graph under `comm`.

    Attributes:
        partitions: the number of shards of a sparse variable. With Cut.BY_BYTES, this is the number for the largest
            variable. The others get fewer shards, so that all shards have about the same number of bytes.
        measured: the measurement of touched rows, for balancing servers. If it is None, upper bounds are used.
        preset: the routes of `comm` if `comm` is not one of this project's built-in modes.
        choice: the route of each variable, used instead of a preset.
        spans_hosts: whether workers can be on several hosts.
        script_runs_steps: whether a script runs the steps. The next batch is then not known one step ahead.
        slower_ahead: the reason why the cost model rejects lookahead, or None. It applies to `Lookahead.AUTO` only.
        without_mpirun: whether no mpirun starts the ranks, so that they find each other without MPI.
    """

    comm: str
    variables: tuple[VariableInfo, ...]
    fingerprint: str
    workers: int
    servers: int
    replicas_per_worker: int = 1
    options: CommOptions = field(default_factory=CommOptions)
    partitions: int = 1
    cut: Cut = Cut.ALIKE
    measured: Measured | None = None
    preset: RoutesConfig | None = None
    choice: Choice | None = None
    spans_hosts: bool = False
    script_runs_steps: bool = False
    slower_ahead: str | None = None
    without_mpirun: bool = False

    @property
    def routes(self) -> RoutesConfig | None:
        """The routes of `comm`, or None if the cost model chooses them."""
        return self.preset or choices().get(self.comm)

    @property
    def mode(self) -> CommMode:
        """The properties of `comm`."""
        return mode_with(self.routes)
