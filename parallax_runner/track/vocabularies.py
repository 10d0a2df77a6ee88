"""Adds up what the ranks report about vocabularies that grow, and describes it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from parallax_runner.train.growth import Growth, Reported, growth_of


@dataclass
class Vocabularies:
    """The vocabularies of a run. `tables` has their state after the last step that all ranks have reported."""

    tables: dict[str, Growth] = field(default_factory=dict)
    _reports: dict[int, dict[int, dict[str, Growth]]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, rank: int, step: int, reported: Reported, *, workers: int) -> None:
        """Adds one rank's report. There are `workers` ranks."""
        if not reported:
            return
        by_rank = self._reports[step]
        by_rank[rank] = growth_of(reported)
        if len(by_rank) < workers:
            return
        del self._reports[step]
        self.tables = {table: Growth.of_ranks(one[table] for one in by_rank.values()) for table in reported}

    def restart(self) -> None:
        """Drops the steps that only some ranks have reported."""
        self._reports.clear()

    def metrics(self) -> dict[str, float]:
        """Returns metrics of all tables, by name."""
        return {name: value for table, one in self.tables.items() for name, value in one.metrics(table).items()}

    def brief(self) -> str:
        """Returns a few words about the table with the fullest bucket, or nothing if no vocabulary grows."""
        if not self.tables:
            return ""
        table, one = max(self.tables.items(), key=lambda item: item[1].fill_of_fullest)
        overflow = f", {one.overflow:,} overflows" if one.overflow else ""
        return (
            f"{table}: {one.keys:,} keys, {one.new_keys_per_step:,.3g} new/step, fullest bucket "
            f"{one.fill_of_fullest:.0%}{overflow}"
        )

    def lines(self) -> list[str]:
        """Returns a sentence about each table."""
        return [_line(table, one) for table, one in self.tables.items()]


def _line(table: str, one: Growth) -> str:
    waiting = f"; {one.waiting:,} more keys wait for a row" if one.waiting else ""
    evicted = f"; {one.evicted:,} times, a key has lost its row" if one.evicted else ""
    overflow = f"; {one.overflow:,} times, a step saw a key without a row of its own" if one.overflow else ""
    return (
        f"vocabulary of {table}: {one.keys:,} keys in {one.capacity:,} rows ({one.fill:.1%}), the fullest bucket is "
        f"{one.fill_of_fullest:.0%} full{waiting}{evicted}{overflow}"
    )
