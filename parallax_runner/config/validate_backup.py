"""Checks `comm.ps.backup_workers` against other settings."""

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
    reason = None
    if comm.name in ("hybrid", "auto"):
        reason = f"the allreduce of comm={comm.name} waits for every worker in each step: it needs comm=ps"
    elif comm.name != "ps":
        reason = f"comm={comm.name} has no servers: it needs comm=ps"
    elif not comm.sync:
        reason = "with comm.sync=false no worker waits for another: it needs comm.sync=true"
    if reason is not None:
        raise refusal(KEY, origins, reason, value=backup_workers)
    cluster = size_cluster(config).cluster
    if backup_workers >= cluster.workers:
        reason = f"a step needs at least one worker: expected less than cluster.workers={cluster.workers}"
        raise refusal(KEY, origins, reason, value=backup_workers)
    if cluster.replicas_per_worker > 1:
        reason = (
            f"only whole workers can be late: expected 0 with cluster.replicas_per_worker={cluster.replicas_per_worker}"
        )
        raise refusal(KEY, origins, reason, value=backup_workers)
    if comm.ps.replicate_variables:
        reason = "copies are refreshed after all workers have updated: expected 0 with comm.ps.replicate_variables=true"
        raise refusal(KEY, origins, reason, value=backup_workers)
    if config.action == "verify":
        reason = "which workers contribute to a step depends on timing, so there is nothing to compare with"
        raise refusal(KEY, origins, f"{reason}; leave it out of action=verify", value=backup_workers)
    if config.train.on_nan == "skip":
        reason = f"all workers must agree to skip a step, which needs {KEY}=0"
        raise refusal("train.on_nan", origins, reason, value="skip")
    if config.train.validate_steps is not None:
        reason = f"a validation between steps waits for all workers: with {KEY} it is only at the end, set null"
        raise refusal("train.validate_steps", origins, reason, value=config.train.validate_steps)
