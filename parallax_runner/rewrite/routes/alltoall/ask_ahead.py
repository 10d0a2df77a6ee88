"""Pass: request the rows of the next step while a step runs, and fetch the rows that the running step does not
write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.distributed_graph import Ahead, Behind, Carried
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.routes.alltoall.ahead import Wave, ask_for_next
from parallax_runner.rewrite.routes.alltoall.later_update import LaterUpdate
from parallax_runner.rewrite.routes.alltoall.lookup import Asked
from parallax_runner.rewrite.schedule.next_batch import NextBatch
from parallax_runner.rewrite.state import Rewrite


@rewrite_pass(reads=["waves", "behind", "applied"], writes=["ahead", "sent"])
def ask_ahead(rewrite: Rewrite) -> None:
    """Creates the ops that prepare the next step while a step runs. `train/ahead.py` carries the results of these ops
    from step to step."""
    if not rewrite.waves:
        return
    batch = NextBatch(rewrite)
    placements = [placement for wave in rewrite.waves for placement in wave.asked.placements]
    after = [] if rewrite.behind is None else [rewrite.behind.apply]
    with tf.name_scope("next/"):
        ids = [batch.of(ids) for wave in rewrite.waves for ids in wave.asked.ids]
        asking = ask_for_next(rewrite, placements, ids, [wave.asked.exchange for wave in rewrite.waves], after=after)
        first, later = ([*batch.drawn, *_carried(rewrite.waves, wave)] for wave in (asking.first, asking.later))
        early = {fed.name for wave in rewrite.waves for fed in (rows.whole for rows in wave.early)}
        rewrite.ahead = Ahead(
            features=batch.features,
            first=tuple(first),
            asked=tuple(one for one in later if one.fed.name not in early),
            route=asking.route,
            rows=tuple(one for one in later if one.fed.name in early),
            behind=None if rewrite.behind is None else _behind(rewrite, rewrite.behind, asking.asked),
        )


def _behind(rewrite: Rewrite, update: LaterUpdate, asked: Asked) -> Behind:
    carried = [one for push in update.carried for one in push.carried(rewrite.applied)]
    return Behind(
        carried=(*carried, *update.numbers),
        apply=update.apply,
        alone=update.alone,
        tell=tf.group(*(push.tell(asked.exchange) for push in update.pushes)),
        give_up=tf.group(*(push.queue.close() for push in update.pushes)),
    )


def _carried(waves: Sequence[Wave], found: Wave) -> Iterator[Carried]:
    """Pairs the tensors of each wave with the matching tensors of `found`, which is a single wave with the tables of
    all `waves`."""
    start = 0
    for number, wave in enumerate(waves):
        end = start + len(wave.asked.ids)
        part = found.of(range(start, end), name=f"wave_{number}")
        yield from (Carried(*both) for both in zip(wave.tensors, part.tensors, strict=True))
        start = end
