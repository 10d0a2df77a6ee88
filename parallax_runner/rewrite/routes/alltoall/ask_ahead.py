"""Pass: request the rows of the next step while a step runs, and fetch those that the step does not write."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.distributed_graph import Ahead, Carried
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.routes.alltoall.ahead import Wave, ask_for_next
from parallax_runner.rewrite.routes.alltoall.next_batch import NextBatch
from parallax_runner.rewrite.state import Rewrite


@rewrite_pass(reads=["waves"], writes=["ahead", "sent"])
def ask_ahead(rewrite: Rewrite) -> None:
    """Makes the ops that prepare the next step while a step runs. `train.ahead` carries their results from step to
    step."""
    if not rewrite.waves:
        return
    batch = NextBatch(rewrite)
    placements = [placement for wave in rewrite.waves for placement in wave.asked.placements]
    with tf.name_scope("next/"):
        ids = [batch.of(ids) for wave in rewrite.waves for ids in wave.asked.ids]
        written = [_written(rewrite, placement.variable) for placement in placements]
        first, later = (
            tuple(itertools.chain(batch.drawn, _carried(rewrite.waves, found)))
            for found in ask_for_next(rewrite, placements, ids, written)
        )
    rewrite.ahead = Ahead(batch.features, first, later)


def _carried(waves: Sequence[Wave], found: Wave) -> Iterator[Carried]:
    """Pairs the tensors of each wave with those of `found`, which holds the tables of all waves."""
    start = 0
    for number, wave in enumerate(waves):
        end = start + len(wave.early)
        part = found.of(range(start, end), name=f"wave_{number}")
        yield from (Carried(*both) for both in zip(wave.tensors, part.tensors, strict=True))
        start = end


def _written(rewrite: Rewrite, variable: str) -> tf.Tensor:
    """Returns the places of this rank's own rows that a step may write: the rows that any rank looks up."""
    asked = [
        exchange.arrived[number]
        for exchange in (wave.asked.exchange for wave in rewrite.waves)
        for number, table in enumerate(exchange.tables)
        if table.variable == variable
    ]
    return asked[0] if len(asked) == 1 else tf.concat([tf.cast(each, tf.int64) for each in asked], axis=0)
