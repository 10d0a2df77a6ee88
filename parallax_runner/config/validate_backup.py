"""What `comm.ps.backup_workers` goes with."""

from parallax_runner.config.cluster_size import size_cluster
from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig

KEY = "comm.ps.backup_workers"


def check_backup(config: RunConfig, origins: Origins) -> None:
    """Refuses backup workers where a step waits for all anyway, and where a step would wait for nobody."""
    comm, backup_workers = config.comm, config.comm.ps.backup_workers
    if backup_workers == 0:
        return
    reason = None
    if comm.name in ("hybrid", "auto"):
        reason = f"the allreduce of comm={comm.name} waits for every worker in each step: it goes with comm=ps"
    elif comm.name != "ps":
        reason = f"comm={comm.name} has no servers: it goes with comm=ps"
    elif not comm.sync:
        reason = "with comm.sync=false no worker waits for another: it goes with comm.sync=true"
    if reason is not None:
        raise refusal(KEY, origins, reason, value=backup_workers)
    cluster = size_cluster(config).cluster
    if backup_workers >= cluster.workers:
        reason = f"a step needs at least one worker: expected less than cluster.workers={cluster.workers}"
        raise refusal(KEY, origins, reason, value=backup_workers)
    if cluster.replicas_per_worker > 1:
        reason = (
            f"a worker is late as a whole: expected 0 with cluster.replicas_per_worker={cluster.replicas_per_worker}"
        )
        raise refusal(KEY, origins, reason, value=backup_workers)
    if comm.ps.replicate_variables:
        reason = "copies are refreshed when all have updated: expected 0 with comm.ps.replicate_variables=true"
        raise refusal(KEY, origins, reason, value=backup_workers)
    if config.action == "verify":
        reason = "which workers make a step depends on who is first, one device has nothing to compare with"
        raise refusal(KEY, origins, f"{reason}; leave it out of action=verify", value=backup_workers)
    if config.train.on_nan == "skip":
        reason = f"skipping a step needs the agreement of all workers: it goes with {KEY}=0"
        raise refusal("train.on_nan", origins, reason, value="skip")
    if config.train.validate_steps is not None:
        reason = f"a validation between steps waits for all workers: with {KEY} there is one at the end, say null"
        raise refusal("train.validate_steps", origins, reason, value=config.train.validate_steps)
