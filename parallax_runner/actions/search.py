"""`action=search`: finds the number of shards with which steps are fastest."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from parallax_runner.actions.runs_steps import RunsSteps
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.explain import refusal

if TYPE_CHECKING:
    from pathlib import Path

    from parallax_runner.config.origins import Origins
    from parallax_runner.config.schema import RunConfig
    from parallax_runner.driver.run_summary import RunSummary


class Search(RunsSteps):
    """Runs trials until the partition search has chosen a number. The trained steps are not kept."""

    validates: ClassVar[bool] = False
    searches_only: ClassVar[bool] = True
    in_script: ClassVar[bool] = True
    purpose: ClassVar[str] = "train"

    def check(self, config: RunConfig, origins: Origins) -> None:
        """Raises ConfigError if there is no search, or nothing to split."""
        if config.partition.name != "search":
            needed = "this action searches for a number of shards; add partition=search"
            raise refusal("action", origins, needed, value=config.action)
        if not mode_of(config.comm).has_servers:
            needed = f"comm={config.comm.name} has no servers, so no variable can be split; use comm=hybrid or comm=ps"
            raise refusal("action", origins, needed, value=config.action)

    def told_at_end(self, summary: RunSummary, run_dir: Path) -> str:
        """Returns the number, and how to use it."""
        found = None if summary.search is None else summary.search.partition_choice
        return (
            f"found: {found} partitions; {run_dir}\n"
            f"to use this number without a search: partition=fixed partition.num={found} partition.cut=by_bytes"
        )
