"""Reads how full a rank's vocabularies are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.distributed_graph import VocabularyCounts
from parallax_runner.train.growth import Growth


@dataclass
class GrowthSinceReport:
    """Knows how many keys the vocabularies had when the last report was made. Reads only this rank's own buckets."""

    _step: int = 0
    _all_keys: dict[str, int] = field(default_factory=dict)  # also those that have lost their rows

    def begin(self, session: tf.Session, vocabularies: Mapping[str, VocabularyCounts], step: int) -> None:
        """Notes the numbers of keys before the first step."""
        if vocabularies:
            counts = session.run({table: one.counts for table, one in vocabularies.items()})
            self._all_keys = {table: _all_keys(one) for table, one in counts.items()}
        self._step = step

    def fields(self, session: tf.Session, vocabularies: Mapping[str, VocabularyCounts], step: int) -> dict[str, Any]:
        """Returns fields for a progress report about the steps since the last report. There are none if no vocabulary
        grows."""
        if not vocabularies:
            return {}
        found = session.run({table: one.counts for table, one in vocabularies.items()})
        growth = {
            table: Growth(
                capacity=vocabularies[table].capacity,
                places=vocabularies[table].places,
                new_keys=_all_keys(counts) - self._all_keys[table],
                steps=step - self._step,
                **{name: int(count) for name, count in counts.items()},
            )
            for table, counts in found.items()
        }
        self._step, self._all_keys = step, {table: _all_keys(counts) for table, counts in found.items()}
        return {"vocabularies": {table: dataclasses.asdict(one) for table, one in growth.items()}}


def _all_keys(counts: Mapping[str, Any]) -> int:
    """Returns how many keys have got a row since the first step."""
    return int(counts["keys"] + counts.get("evicted", 0))
