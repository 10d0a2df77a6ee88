"""The settings of a run whose number of workers changes."""

from __future__ import annotations

from parallax_runner.config.cluster_size import size_cluster
from parallax_runner.config.explain import refusal
from parallax_runner.config.launchers import is_chosen, names_other_hosts
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.targets import FIT, SCRIPT
from parallax_runner.config.worker_numbers import GLOBAL, PER_WORKER, is_elastic, least_workers, most_workers

MIN_WORKERS, MAX_WORKERS = "cluster.min_workers", "cluster.max_workers"


def check_resize(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if the numbers of workers contradict each other, or if the run cannot change its number."""
    if not is_elastic(config):
        return
    _check_hosts(config, origins)
    _check_numbers(config, origins)
    _check_restarts(config, origins)
    _check_comm(config, origins)
    _check_batches(config, origins)
    _check_rate(config, origins)


def _check_hosts(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if all processes run on this machine, which cannot lose or take in any of them."""
    cluster = config.cluster
    if is_chosen(cluster.launcher) or names_other_hosts(config):
        return
    key = MIN_WORKERS if cluster.min_workers is not None else MAX_WORKERS
    needed = "all processes run on this machine, so their number does not change; name other hosts in "
    reason = f"{needed}cluster.resource_info, or omit this key"
    raise refusal(key, origins, reason, value=getattr(cluster, key.partition(".")[2]))


def _check_numbers(config: RunConfig, origins: Origins) -> None:
    cluster = size_cluster(config).cluster
    least, most = least_workers(cluster), most_workers(cluster)
    if least > most:
        key = MIN_WORKERS if cluster.min_workers is not None else MAX_WORKERS
        reason = f"the smallest number of workers, {least}, is larger than the largest number, {most}"
        raise refusal(key, origins, reason, value=getattr(cluster, key.partition(".")[2]))
    if not least <= cluster.workers <= most:
        reason = f"the run begins with this number; expected a number from {least} to {most}"
        raise refusal("cluster.workers", origins, reason, value=cluster.workers)


def _check_restarts(config: RunConfig, origins: Origins) -> None:
    if not config.ckpt.enabled:
        needed = "a run whose number of workers changes continues from checkpoints; omit ckpt=off"
        raise refusal("ckpt.enabled", origins, needed, value=False)
    if config.train.max_restarts == 0:
        needed = "a run whose number of workers changes restarts after a loss; expected at least 1"
        raise refusal("train.max_restarts", origins, needed, value=0)


def _check_comm(config: RunConfig, origins: Origins) -> None:
    if config.comm.ps.backup_workers:
        needed = "the number of workers of this run changes, so no number of them can be spare; omit this key"
        raise refusal("comm.ps.backup_workers", origins, needed, value=config.comm.ps.backup_workers)
    if config.partition.name == "search":
        needed = "the number of workers of this run changes, so trials cannot be compared; choose partition=fixed"
        raise refusal("partition", origins, needed, value="search")


def _check_batches(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if the script or the mode decides which examples a step has."""
    target, on_resize = config.model["_target_"], config.train.on_resize
    if on_resize == GLOBAL and target == SCRIPT:
        needed = f"a script feeds its own batches, whose sizes stay the same; set train.on_resize={PER_WORKER}"
        raise refusal("train.on_resize", origins, needed, value=on_resize)
    if on_resize == GLOBAL and not config.comm.sync:
        needed = f"with comm.sync=false a step has the examples of one worker; set train.on_resize={PER_WORKER}"
        raise refusal("train.on_resize", origins, needed, value=on_resize)
    if on_resize == PER_WORKER and target == FIT:
        needed = f"the data of fit has batches of its own, which all workers divide; set train.on_resize={GLOBAL}"
        raise refusal("train.on_resize", origins, needed, value=on_resize)


def _check_rate(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if the learning rate must change, but the configuration does not set it."""
    scale = config.train.scale_lr
    if scale == "none":
        return
    if config.train.on_resize == GLOBAL:
        needed = f"a step has the same examples with any number of workers; this key needs train.on_resize={PER_WORKER}"
        raise refusal("train.scale_lr", origins, needed, value=scale)
    if not isinstance(config.optimizer.get("learning_rate"), int | float):
        needed = "this key needs a number in optimizer.learning_rate"
        raise refusal("train.scale_lr", origins, needed, value=scale)
