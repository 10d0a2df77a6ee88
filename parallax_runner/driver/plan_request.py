"""Builds the request for a plan from a configuration."""

from __future__ import annotations

from collections.abc import Sequence

from parallax_runner.analysis.variable_info import VariableInfo
from parallax_runner.config.cluster_size import spans_hosts
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.frozen import is_fit, is_of_script
from parallax_runner.config.launchers import declared_by
from parallax_runner.config.schema import RunConfig
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.planning.cost.measured import Measured
from parallax_runner.planning.cut import Cut
from parallax_runner.planning.plan_request import PlanRequest


def plan_request(
    config: RunConfig, variables: Sequence[VariableInfo], fingerprint: str, measured: Measured | None
) -> PlanRequest:
    """Returns the request for the plan of a run. With comm=auto, the request does not contain the choice of routes
    yet."""
    return PlanRequest(
        comm=config.comm.name,
        variables=tuple(variables),
        fingerprint=fingerprint,
        workers=1 if mode_of(config.comm).is_one_process else config.cluster.workers,
        servers=config.cluster.servers,
        replicas_per_worker=config.cluster.replicas_per_worker,
        options=CommOptions.of(config.comm),
        partitions=config.partition.num,
        cut=cut_of(config),
        measured=measured,
        preset=config.comm.routes,
        spans_hosts=spans_hosts(config.cluster),
        script_runs_steps=is_of_script(config) and not is_fit(config),
        without_mpirun=declared_by(config.cluster.launcher).without_mpirun,
    )


def cut_of(config: RunConfig) -> Cut:
    """Returns the rule for applying the configured number of shards to sparse variables."""
    return Cut.BY_BYTES if config.partition.name == "search" else Cut(config.partition.cut)
