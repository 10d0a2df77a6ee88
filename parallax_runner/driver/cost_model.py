"""The cost model of what a plan is asked for, and the constants that are known of a configuration's cluster."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from parallax_runner.config.schema import RunConfig
from parallax_runner.files.cache import cache_key, cache_root
from parallax_runner.planning.cost import constants
from parallax_runner.planning.cost.constants import DEFAULTS, Constants
from parallax_runner.planning.cost.model import Cluster, CostModel
from parallax_runner.planning.cost.server_load import ServerLoad
from parallax_runner.planning.cut import cut_variables
from parallax_runner.planning.plan_request import PlanRequest


def cost_model(request: PlanRequest, known: Constants) -> CostModel:
    """Of the processes that are asked for: each counts as a host, as the constants are of processes too."""
    return CostModel(
        cluster=Cluster(request.workers, request.servers),
        constants=known,
        options=request.options,
        measured=request.measured,
        load=ServerLoad.of(
            cut_variables(request.variables, request.partitions, request.cut),
            request.servers,
            request.measured,
            known,
            together=request.comm == "ps",
            ps=request.options.ps,
        ),
    )


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
