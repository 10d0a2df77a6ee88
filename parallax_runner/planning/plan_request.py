"""What a plan is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax_runner.analysis.variable_info import VariableInfo
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.planning.choose import Choice
from parallax_runner.planning.cost.measured import Measured
from parallax_runner.planning.cut import Cut
from parallax_runner.planning.presets import Preset


@dataclass(frozen=True)
class PlanRequest:
    """A graph's variables and fingerprint, and the cluster that trains them under `comm`.

    Attributes:
        partitions: how many shards a sparse variable gets, or, with Cut.BY_BYTES, the largest one: the others get so
            many that all shards have about equal bytes.
        measured: the rows by which servers are balanced; None: by how many a step touches at most.
        preset: the routes of `comm` where that is not one of the choices that come with this project.
        choice: the routes of each variable, in place of a preset.
        spans_hosts: whether workers may be on several hosts.
        by_gloo: whether ranks exchange gradients by Gloo in place of MPI.
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
    preset: Preset | None = None
    choice: Choice | None = None
    spans_hosts: bool = False
    by_gloo: bool = False
