"""`python -m parallax_runner.calibrate [Hydra overrides]`: measures the cost model's constants on a cluster.

It starts ranks and a server as a run of this configuration would, times exchanges of growing size and updates, and
keeps what it fits for all later plans on this cluster.
"""

from __future__ import annotations

import datetime
import platform
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from parallax_runner.calibration.samples import Sample
from parallax_runner.calibration.table import constants_table
from parallax_runner.config import frozen
from parallax_runner.config.cluster_size import size_cluster
from parallax_runner.config.compose import Composer, resolve
from parallax_runner.config.validate import validate
from parallax_runner.costing import constants_path
from parallax_runner.errors import LaunchError
from parallax_runner.exit_status import tell
from parallax_runner.launch import command, processes
from parallax_runner.launch.interrupts import Interrupted, Interrupts
from parallax_runner.launch.spec import LaunchSpec
from parallax_runner.plan import constants

MODULE = "parallax_runner.calibrator"


def main(overrides: Sequence[str]) -> int:
    """Calibrates, shows and keeps the constants; returns the exit status."""
    try:
        config = composed(overrides)
        folder = Path(tempfile.mkdtemp(prefix="parallax_calibrate_"))
        with Interrupts() as interrupts:
            try:
                found = calibrate(config, folder, interrupts)
            except Interrupted:
                return interrupts.exit_status
            except LaunchError as error:
                raise LaunchError(f"{error} (logs: {folder})") from error
        shutil.rmtree(folder)
        path = constants_path(config)
        constants.save(found, path)
        Console(width=None if sys.stdout.isatty() else 100).print(constants_table(found))
        print(f"kept in {path}; plans for this cluster use it from now on")
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return tell(error)
    return 0


def composed(overrides: Sequence[str]) -> DictConfig:
    """The configuration of a run with these overrides. Raises ConfigError."""
    job = Composer().job(list(overrides))
    config = resolve(job)
    validate(config, job.origins)
    return size_cluster(config)


def calibrate(config: DictConfig, folder: Path, interrupts: Interrupts) -> constants.Constants:
    """Of two ranks, and of all if there are more: by several numbers, what a round costs is told from the rest."""
    from parallax_runner.calibration.fit import fit

    samples: list[Sample] = []
    sizes = sorted({2, max(2, config.cluster.workers)})
    for ranks in sizes:
        print(f"calibrate: {ranks} ranks and a server", file=sys.stderr, flush=True)
        samples += measured(config, ranks, folder / f"ranks_{ranks}", interrupts)
    told = " and ".join(map(str, sizes))
    return fit(samples, source=f"calibrated {datetime.date.today()} on {platform.node()} with {told} ranks")


def measured(config: DictConfig, ranks: int, folder: Path, interrupts: Interrupts) -> list[Sample]:
    """The samples of one launch. Raises LaunchError where it fails."""
    content = DictConfig(OmegaConf.to_container(config, resolve=True))
    content.run_dir = str(folder)
    frozen.freeze(content, folder)
    threads = config.cluster.threads_per_worker
    spec = LaunchSpec(
        run_dir=folder,
        workers=ranks,
        worker=command.worker_command(run_dir=folder, workers=ranks, threads_per_worker=threads, module=MODULE),
        server=(command.server_command(run_dir=folder, index=0, threads_per_server=threads),),
        hang_timeout_secs=config.train.hang_timeout_secs,
    )
    result = processes.run(spec, on_message=lambda message: None, interrupts=interrupts)
    if result.status == "interrupted":
        raise Interrupted
    if result.status != "finished":
        raise LaunchError(f"calibrate: {result.failure}")
    return [Sample(**sample) for sample in result.done["worker", 0]["samples"]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
