"""Checks that the settings of group `partition` are valid for its choice and for the choice of `comm`."""

from parallax_runner.config.actions import action_of
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import PartitionConfig, RunConfig


def check_partition(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for a search that is impossible, or whose settings are missing or contradict each other."""
    partition = config.partition
    if partition.name != "search":
        return
    chosen = "partition" if origins.of("partition") else "partition.name"
    if mode_of(config.comm).is_chosen_by_cost:
        needed = "a search measures one mode, but comm=auto chooses routes itself; choose comm=hybrid or comm=ps"
        raise refusal(chosen, origins, needed, value="search")
    for name, least in (("min", 1), ("steps_per_trial", 2)):
        if _of_search(partition)[name] is None:
            raise refusal(f"partition.{name}", origins, f"a search needs an integer, at least {least}")
    if partition.max is not None and partition.min is not None and partition.max < partition.min:
        needed = f"expected at least partition.min={partition.min}, or null"
        raise refusal("partition.max", origins, needed, value=partition.max)


def check_barrier(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for a search in a run without a moment at which all workers wait between two steps. Only then
    can the number of shards change."""
    if config.partition.name != "search":
        return
    reason = _without_barrier(config)
    if reason is None:
        return
    chosen = "partition" if origins.of("partition") else "partition.name"
    needed = f"a search changes the number of shards while all workers wait between two steps, but {reason}"
    raise refusal(chosen, origins, f"{needed}; choose partition=fixed, or search in another run", value="search")


def _without_barrier(config: RunConfig) -> str | None:
    """Returns the reason why a search cannot change the number of shards, or None if it can."""
    if not config.comm.sync:
        return "with comm.sync=false no worker waits for the others"
    if config.comm.ps.backup_workers:
        return f"with comm.ps.backup_workers={config.comm.ps.backup_workers} no step waits for all workers"
    if action_of(config).repeats_steps:
        return f"action={config.action} compares the steps of one unchanged plan"
    return None


def _of_search(partition: PartitionConfig) -> dict[str, int | None]:
    return {"min": partition.min, "max": partition.max, "steps_per_trial": partition.steps_per_trial}
