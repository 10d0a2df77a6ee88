"""The settings of a Slurm job. Slurm determines the hosts and the numbers of tasks."""

import re

from parallax_runner.config import slurm_allocation
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.resource_info import read_hosts
from parallax_runner.config.rules.cluster import check_even, refuse_numbers
from parallax_runner.config.schema import RunConfig

TIME_LIMIT = re.compile(r"(\d+-)?\d+(:\d+){0,2}")


def check_slurm(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for settings that Slurm determines, and for options that sbatch would reject."""
    cluster = config.cluster
    if cluster.launcher != slurm_allocation.LAUNCHER:
        return
    source = "the job's allocation, or from cluster.nodes and cluster.tasks_per_node"
    refuse_numbers(config, origins, f"under Slurm, this number follows from {source}; omit this key")
    if cluster.resource_info is not None:
        needed = "under Slurm the job determines the hosts; omit this key"
        raise refusal("cluster.resource_info", origins, needed, value=cluster.resource_info)
    if mode_of(config.comm).is_one_process:
        needed = "this mode runs one process, but a Slurm job has several tasks"
        raise refusal("comm.name", origins, needed, value=config.comm.name, hint="cluster=local, in your own Slurm job")
    _check_options(config, origins)
    check_even(read_hosts(slurm_allocation.host_lines(cluster)), config, origins)


def _check_options(config: RunConfig, origins: Origins) -> None:
    limit, options = config.cluster.time_limit, config.cluster.sbatch_options
    if limit is not None and not TIME_LIMIT.fullmatch(str(limit)):
        expected = (
            "expected sbatch's format, such as minutes, hours:minutes:seconds or days-hours; quote a value that "
            "contains a colon"
        )
        raise refusal("cluster.time_limit", origins, expected, value=limit)
    if not isinstance(options, str) and not all(isinstance(one, str) for one in options):
        raise refusal("cluster.sbatch_options", origins, "expected a string or a list of strings", value=options)
