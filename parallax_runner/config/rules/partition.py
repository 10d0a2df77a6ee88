"""Checks that the settings of group `partition` are valid for its choice and for the choice of `comm`."""

from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import PartitionConfig, RunConfig


def check_partition(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for a search that is impossible, or whose settings are missing or contradict each other."""
    partition = config.partition
    if partition.name != "search":
        if config.action == "search":
            needed = "this action searches for a number of shards; add partition=search"
            raise refusal("action", origins, needed, value="search")
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


def _of_search(partition: PartitionConfig) -> dict[str, int | None]:
    return {"min": partition.min, "max": partition.max, "steps_per_trial": partition.steps_per_trial}
