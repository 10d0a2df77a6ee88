"""Checks `comm.ps.backup_workers` against other settings."""

from parallax_runner.config.actions import action_of
from parallax_runner.config.cluster_size import size_cluster
from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig

KEY = "comm.ps.backup_workers"


def check_backup(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if a step must wait for all workers, or would wait for none."""
    comm, backup_workers = config.comm, config.comm.ps.backup_workers
    if backup_workers == 0:
        return
    cluster = size_cluster(config).cluster
    if backup_workers >= cluster.workers:
        reason = f"a step needs at least one worker; expected less than cluster.workers={cluster.workers}"
        raise refusal(KEY, origins, reason, value=backup_workers)
    if cluster.replicas_per_worker > 1:
        replicas = f"cluster.replicas_per_worker={cluster.replicas_per_worker}"
        reason = f"a step cannot drop individual replicas of a worker; expected 0 with {replicas}"
        raise refusal(KEY, origins, reason, value=backup_workers)
    if comm.ps.replicate_variables:
        reason = "copies are refreshed after all workers' updates; expected 0 with comm.ps.replicate_variables=true"
        raise refusal(KEY, origins, reason, value=backup_workers)
    if action_of(config).repeats_steps:
        reason = "timing determines which workers contribute to a step, so a comparison is not possible"
        raise refusal(KEY, origins, f"{reason}; action={config.action} needs {KEY}=0", value=backup_workers)
    if config.train.on_nan == "skip":
        reason = f"all workers must agree to skip a step, so {KEY} must be 0"
        raise refusal("train.on_nan", origins, reason, value="skip")
    if config.train.validate_steps is not None:
        reason = f"validation between steps waits for all workers; {KEY} allows validation only at the end, so set null"
        raise refusal("train.validate_steps", origins, reason, value=config.train.validate_steps)
