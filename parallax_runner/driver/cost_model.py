"""The cost model of a configuration: its cluster, the constants that are known of it, and what was measured."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from parallax_runner.analysis.variable_info import VariableInfo
from parallax_runner.config.schema import RunConfig
from parallax_runner.files.cache import cache_key, cache_root
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.planning.cost import constants
from parallax_runner.planning.cost.constants import DEFAULTS, Constants
from parallax_runner.planning.cost.measured import Measured
from parallax_runner.planning.cost.model import Cluster, CostModel
from parallax_runner.planning.cost.server_load import ServerLoad
from parallax_runner.planning.cut import Cut, cut_variables


def cost_model(config: RunConfig, variables: tuple[VariableInfo, ...], measured: Measured | None) -> CostModel:
    """Of the processes that the configuration starts: each counts as a host, as the constants are of processes too."""
    workers = 1 if config.comm.name == "local" else config.cluster.workers
    known, options = constants_of(config), CommOptions.of(config.comm)
    return CostModel(
        cluster=Cluster(workers=workers, servers=config.cluster.servers),
        constants=known,
        options=options,
        measured=measured,
        load=ServerLoad.of(
            cut_variables(variables, config.partition.num, cut_of(config)),
            config.cluster.servers,
            measured,
            known,
            together=config.comm.name == "ps",
            ps=options.ps,
        ),
    )


def cut_of(config: RunConfig) -> Cut:
    """How sparse variables share the configured number of pieces."""
    return Cut.BY_BYTES if config.partition.name == "search" else Cut(config.partition.cut)


def constants_of(config: RunConfig) -> Constants:
    """Those that scripts/calibrate has measured on this cluster, or else the defaults."""
    try:
        return constants.load(constants_path(config))
    except (OSError, ValueError, KeyError, TypeError):  # none, or not one of this version's
        return DEFAULTS


def constants_path(config: RunConfig) -> Path:
    """Where the constants of the configuration's cluster are kept: it is told by its hosts and their cores."""
    lines, threads = config.cluster.resource_info, config.cluster.threads_per_worker
    described = [constants.FORMAT, lines, platform.node(), os.cpu_count(), threads]
    return cache_root() / "calibration" / f"{cache_key(described)}.json"
