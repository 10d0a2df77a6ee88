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
    _keys: dict[str, int] = field(default_factory=dict)

    def begin(self, session: tf.Session, vocabularies: Mapping[str, VocabularyCounts], step: int) -> None:
        """Notes the numbers of keys before the first step."""
        if vocabularies:
            self._keys = session.run({table: one.keys for table, one in vocabularies.items()})
        self._step = step

    def fields(self, session: tf.Session, vocabularies: Mapping[str, VocabularyCounts], step: int) -> dict[str, Any]:
        """Returns fields for a progress report about the steps since the last report. There are none if no vocabulary
        grows."""
        if not vocabularies:
            return {}
        found = session.run({table: (one.keys, one.fullest, one.overflow) for table, one in vocabularies.items()})
        growth = {
            table: Growth(
                capacity=vocabularies[table].capacity,
                places=vocabularies[table].places,
                keys=int(keys),
                fullest=int(fullest),
                overflow=int(overflow),
                new_keys=int(keys - self._keys[table]),
                steps=step - self._step,
            )
            for table, (keys, fullest, overflow) in found.items()
        }
        self._step, self._keys = step, {table: one.keys for table, one in growth.items()}
        return {"vocabularies": {table: dataclasses.asdict(one) for table, one in growth.items()}}
