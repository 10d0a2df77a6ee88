"""The cost model for a requested plan, and the cost constants of the configured cluster."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.exchange_backend import chosen_backend
from parallax_runner.files.cache import cache_key, cache_root
from parallax_runner.planning.cost import constants
from parallax_runner.planning.cost.constants import DEFAULTS, Constants
from parallax_runner.planning.cost.model import Cluster, CostModel
from parallax_runner.planning.cost.server_load import ServerLoad
from parallax_runner.planning.cut import cut_variables
from parallax_runner.planning.lookahead import in_effect
from parallax_runner.planning.plan_request import PlanRequest


def cost_model(request: PlanRequest, known: Constants) -> CostModel:
    """Returns the cost model for the requested processes. Each process counts as a host, because the constants were
    also measured per process."""
    return CostModel(
        cluster=Cluster(request.workers, request.servers),
        constants=known,
        options=in_effect(request),
        measured=request.measured,
        load=ServerLoad.of(
            cut_variables(request.variables, request.partitions, request.cut),
            request.servers,
            request.measured,
            known,
            together=request.mode.is_all_on_servers,
            ps=request.options.ps,
        ),
    )


def constants_of(config: RunConfig) -> Constants:
    """Returns the constants that scripts/calibrate measured on this cluster, or the defaults if the cluster was never
    calibrated."""
    try:
        return constants.load(constants_path(config))
    except (OSError, ValueError, KeyError, TypeError):  # there is no file, or it is damaged
        return DEFAULTS


def constants_path(config: RunConfig) -> Path:
    """Returns the path of the file with the constants of the configured cluster. The file name depends on the cluster's
    hosts, this host's name and number of cores, the threads per worker, and what exchanges tensors."""
    lines, threads = config.cluster.resource_info, config.cluster.threads_per_worker
    described = [constants.FORMAT, lines, platform.node(), os.cpu_count(), threads, chosen_backend(config).name]
    return cache_root() / "calibration" / f"{cache_key(described)}.json"
