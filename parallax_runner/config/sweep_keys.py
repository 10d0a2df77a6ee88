"""Checks the keys of `sweep` that affect each job."""

from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.explain import refusal
from parallax_runner.config.gpus import detect_gpus
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig


def check_sweep_keys(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if a job does not meet the requirements of `sweep.ensemble` or `sweep.device_per_job`."""
    if config.sweep.ensemble is not None:
        _check_ensemble(config, origins)
    if config.sweep.device_per_job:
        _check_device(config, origins)


def _check_ensemble(config: RunConfig, origins: Origins) -> None:
    key, count = "sweep.ensemble", config.sweep.ensemble
    if config.action != "train":
        raise refusal(key, origins, "an ensemble needs trained models; use action=train", value=count)
    if not config.tracking.enabled or config.tracking.log_checkpoints == "none" or not config.ckpt.enabled:
        needed = (
            "an ensemble combines the models that the jobs save for serving; it needs ckpt, tracking, and "
            "tracking.log_checkpoints=last, best or all"
        )
        raise refusal(key, origins, needed, value=count)


def _check_device(config: RunConfig, origins: Origins) -> None:
    key, cluster = "sweep.device_per_job", config.cluster
    if cluster.resource_info is not None or cluster.launcher != "auto":
        needed = "the cluster settings already place a job's processes; use cluster=local without resource_info"
        raise refusal(key, origins, needed, value=True)
    if not mode_of(config.comm).is_one_process and cluster.workers * cluster.replicas_per_worker > 1:
        needed = "a job with one device has one worker; use comm=local or cluster.workers=1"
        raise refusal(key, origins, needed, value=True)
    if not detect_gpus():
        raise refusal(key, origins, "this machine has no GPUs that jobs can use; omit this key", value=True)
