"""How full the vocabularies that grow are, as ranks report it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Growth:
    """The state of a vocabulary, on one rank or on all.

    `keys` of `capacity` rows belong to a key. The fullest bucket has `fullest` keys, and any bucket at most `places`.
    `overflow` counts how often a step saw a key without a row of its own. `waiting` keys have no row yet. `evicted`
    keys have lost theirs since the first step. Both are None if the table does not count them. In the
    last `steps` steps, `new_keys` keys got a row.
    """

    capacity: int
    places: int
    keys: int
    fullest: int
    overflow: int
    new_keys: int
    steps: int
    waiting: int | None = None
    evicted: int | None = None

    @classmethod
    def of_ranks(cls, many: Iterable[Self]) -> Self:
        """Returns the state on all ranks, from the states on each rank after the same step."""
        ranks = list(many)
        return cls(
            capacity=sum(one.capacity for one in ranks),
            places=ranks[0].places,
            keys=sum(one.keys for one in ranks),
            fullest=max(one.fullest for one in ranks),
            overflow=sum(one.overflow for one in ranks),
            new_keys=sum(one.new_keys for one in ranks),
            steps=ranks[0].steps,
            waiting=_sum(one.waiting for one in ranks),
            evicted=_sum(one.evicted for one in ranks),
        )

    @property
    def fill(self) -> float:
        """The part of the rows that belong to a key."""
        return self.keys / self.capacity

    @property
    def fill_of_fullest(self) -> float:
        """The part of the fullest bucket's rows that belong to a key."""
        return self.fullest / self.places

    @property
    def new_keys_per_step(self) -> float:
        """The mean number of new keys in a step."""
        return self.new_keys / self.steps if self.steps else 0.0

    def metrics(self, table: str) -> dict[str, float]:
        """Returns metrics of the vocabulary of a table, by name."""
        return {
            f"vocabulary/{table}/keys": float(self.keys),
            f"vocabulary/{table}/fill": self.fill,
            f"vocabulary/{table}/fill_of_fullest_bucket": self.fill_of_fullest,
            f"vocabulary/{table}/new_keys_per_step": self.new_keys_per_step,
            f"vocabulary/{table}/overflow": float(self.overflow),
            **({} if self.waiting is None else {f"vocabulary/{table}/waiting_keys": float(self.waiting)}),
            **({} if self.evicted is None else {f"vocabulary/{table}/evicted_keys": float(self.evicted)}),
        }


def _sum(counts: Iterable[int | None]) -> int | None:
    """Returns the sum of counts, or None if there are none."""
    given = [count for count in counts if count is not None]
    return sum(given) if given else None


Reported = Mapping[str, Mapping[str, Any]]  # the fields of `Growth` by table


def growth_of(reported: Reported) -> dict[str, Growth]:
    """Returns what a rank has reported, by table."""
    return {table: Growth(**fields) for table, fields in reported.items()}
