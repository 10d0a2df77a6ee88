"""The keys of `sweep` that affect each job, and the folders of the jobs of a sweep."""

from collections.abc import MutableSet
from pathlib import Path

from parallax_runner.config.actions import action_of
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.explain import refusal
from parallax_runner.config.gpus import detect_gpus
from parallax_runner.config.launchers import is_chosen
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig


def check_ensemble(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if a job does not leave the model that `sweep.ensemble` needs."""
    key, count = "sweep.ensemble", config.sweep.ensemble
    if count is None:
        return
    if not action_of(config).trains:
        raise refusal(key, origins, "an ensemble needs trained models; use action=train", value=count)
    if not config.tracking.enabled or config.tracking.log_checkpoints == "none" or not config.ckpt.enabled:
        needed = (
            "an ensemble combines the models that the jobs save for serving; it needs ckpt, tracking, and "
            "tracking.log_checkpoints=last, best or all"
        )
        raise refusal(key, origins, needed, value=count)


def check_device_per_job(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if a job cannot have a GPU of its own, as `sweep.device_per_job` asks."""
    key, cluster = "sweep.device_per_job", config.cluster
    if not config.sweep.device_per_job:
        return
    if cluster.resource_info is not None or is_chosen(cluster.launcher):
        needed = "the cluster settings already place a job's processes; use cluster=local without resource_info"
        raise refusal(key, origins, needed, value=True)
    if not mode_of(config.comm).is_one_process and cluster.workers * cluster.replicas_per_worker > 1:
        needed = "a job with one device has one worker; use comm=local or cluster.workers=1"
        raise refusal(key, origins, needed, value=True)
    if not detect_gpus():
        raise refusal(key, origins, "this machine has no GPUs that jobs can use; omit this key", value=True)


def check_own_folders(
    config: RunConfig, origins: Origins, folders: MutableSet[Path], *, values_are_known: bool = True
) -> None:
    """Raises ConfigError for a job that would write to the folder of an earlier job of the sweep.

    Adds the job's folders to `folders`. If a sweeper has not chosen the job's values yet (`values_are_known` is
    false), run_dir is not checked, because its name may contain these values.
    """
    run_dir = Path(config.run_dir).absolute()
    # In a shared ckpt.dir a job would resume from another job's checkpoint, and shared logs would be mixed up.
    writes = {
        "run_dir": config.run_dir if values_are_known else None,
        "ckpt.dir": config.ckpt.dir if config.ckpt.enabled and action_of(config).trains else None,
        "profile.dir": config.profile.dir if config.profile.name != "off" else None,
        "redirect_path": config.redirect_path,
        "export_graph_path": config.export_graph_path,
    }
    for key, path in writes.items():
        if path is None:
            continue
        folder = Path(path).absolute()
        is_in_own_folder = key != "run_dir" and folder.is_relative_to(run_dir)
        if folder in folders and not is_in_own_folder:
            reason = "every job of a sweep needs its own folder; add ${hydra:job.num} to the path"
            raise refusal(key, origins, reason)
        folders.add(folder)
