"""Measures the cost model's constants on a cluster.

A calibration starts ranks and servers as a run with this configuration would, and times updates and exchanges of
increasing size. The fitted constants are saved for all later plans on this cluster. A copy is saved in the file
`constants.json` in the calibration's run_dir.
"""

from __future__ import annotations

import dataclasses
import datetime
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from parallax_runner.calibration.constants_table import constants_table
from parallax_runner.calibration.samples import Sample
from parallax_runner.collectives.chosen import BACKENDS, choose
from parallax_runner.config.cluster_size import size_cluster
from parallax_runner.config.compose import Composer
from parallax_runner.config.resource_info import Host, read_hosts
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.check import checked_job
from parallax_runner.driver.cost_model import constants_path
from parallax_runner.driver.exchange_backend import working_backend
from parallax_runner.driver.jobs.child_job import require_finished, run_child_job
from parallax_runner.driver.only_driver import check_only_driver
from parallax_runner.errors import StorageError
from parallax_runner.launch.interrupts import Interrupted, Interrupts
from parallax_runner.plan import plan
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.planning.cost import constants
from parallax_runner.process.exit_status import tell
from parallax_runner.process.terminal import keep_going

MODULE = "parallax_runner.worker.calibration"
FILE_NAME = "constants.json"


def main(overrides: Sequence[str]) -> int:
    """Calibrates, then prints and saves the constants. Returns the exit status."""
    keep_going()
    try:
        config = composed(overrides)
        check_only_driver(config.cluster.launcher)
        folder = Path(config.run_dir)
        with Interrupts() as interrupts:
            try:
                found = calibrate(config, folder, interrupts)
            except Interrupted:
                return interrupts.exit_status
        constants.save(found, folder / FILE_NAME)
        Console(width=None if sys.stdout.isatty() else 100).print(constants_table(found))
        path = constants_path(config)
        try:
            constants.save(found, path)
        except OSError as error:
            raise StorageError(
                f"{path}: cannot be written: {error.strerror}; the result is in {folder / FILE_NAME}. "
                "Free disk space or set XDG_CACHE_HOME, then copy the result into the cache"
            ) from error
        print(f"saved in {path}; later plans for this cluster use these constants")
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return tell(error)
    return 0


def composed(overrides: Sequence[str]) -> RunConfig:
    """Returns the configuration of a run with these overrides. Raises ConfigError if it is invalid."""
    return size_cluster(checked_job(Composer().job(list(overrides))))


def calibrate(config: RunConfig, folder: Path, interrupts: Interrupts) -> constants.Constants:
    """Measures with two ranks, and again with all ranks if there are more than two. Two cluster sizes are needed to
    compute the cost of one round."""
    from parallax_runner.calibration.fit_constants import fit

    samples: list[Sample] = []
    sizes = sorted({2, max(2, config.cluster.workers)})
    for ranks in sizes:
        samples += measured(config, ranks, folder / f"ranks_{ranks}", interrupts)
    told = " and ".join(map(str, sizes))
    return fit(samples, source=f"calibrated {datetime.date.today()} on {platform.node()} with {told} ranks")


def measured(config: RunConfig, ranks: int, folder: Path, interrupts: Interrupts) -> list[Sample]:
    """Returns the samples of one launch. The launch has one server on this machine, or one server on each host.

    Raises LaunchError if the launch fails, and CollectiveError if what exchanges tensors cannot be compiled.
    """
    hosts, cluster = 1, config.cluster
    if cluster.resource_info is not None:
        placed = spread(read_hosts(cluster.resource_info), ranks)
        hosts, cluster = len(placed), dataclasses.replace(cluster, resource_info=tuple(map(str, placed)))
    ckpt = dataclasses.replace(config.ckpt, enabled=False)
    content = dataclasses.replace(config, run_dir=str(folder), cluster=cluster, ckpt=ckpt)
    options = CommOptions(backend=_prepared_backend(config))
    made = plan.Plan(
        comm="hybrid", workers=ranks, servers=hosts, fingerprint="", variables=(), notes=(), options=options
    )
    print(f"calibrate: {ranks} ranks and {hosts} server(s)", file=sys.stderr, flush=True)
    result = run_child_job(content, made, module=MODULE, interrupts=interrupts)
    require_finished(result, "calibrate", folder)
    return [Sample(**sample) for sample in result.done["worker", 0]["samples"]]


def _prepared_backend(config: RunConfig) -> str:
    """Returns the name of the backend through which a run with this configuration exchanges tensors."""
    name = working_backend(config).name
    choose(BACKENDS[name])
    BACKENDS[name].prepare()
    return name


def spread(hosts: Sequence[Host], ranks: int) -> list[Host]:
    """Returns the hosts for `ranks` ranks. If there are enough hosts, each rank gets its own host, so that the link
    between hosts is measured."""
    if ranks > len(hosts):
        return list(hosts)
    return [dataclasses.replace(host, slots=host.slots[:1]) for host in hosts[:ranks]]
