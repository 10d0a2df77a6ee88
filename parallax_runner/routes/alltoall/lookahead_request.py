"""Pass: request the rows of the next step while a step runs, and fetch the rows that the running step does not
write."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.collectives.streams import stream
from parallax_runner.rewrite.distributed_graph import Ahead, Carried
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.routes.alltoall.by_table import ByTable, count, cut, of_numbers
from parallax_runner.routes.alltoall.lookahead_batch import NextBatch
from parallax_runner.routes.alltoall.lookahead_rows import Wave, all_late
from parallax_runner.routes.alltoall.lookup import Asked, ask
from parallax_runner.routes.alltoall.row_exchange import Exchange
from parallax_runner.routes.alltoall.state import AlltoallState


@rewrite_pass(reads=["AlltoallState.waves"], writes=["ahead", "sent"])
def ask_ahead(rewrite: Rewrite) -> None:
    """Creates the ops that prepare the next step while a step runs. `train/lookahead_steps.py` carries the results of
    these ops from step to step."""
    if not rewrite.of_route(AlltoallState).waves:
        return
    batch = NextBatch(rewrite)
    placements = [placement for wave in rewrite.of_route(AlltoallState).waves for placement in wave.asked.placements]
    with tf.name_scope("next/"), stream("next", deadline_steps=1):
        ids = [batch.of(ids) for wave in rewrite.of_route(AlltoallState).waves for ids in wave.asked.ids]
        asked = ask(rewrite, placements, ids, name="next")
        later = _early_and_late(asked, running=[wave.asked.exchange for wave in rewrite.of_route(AlltoallState).waves])
        first = all_late(asked)
        rewrite.ahead = Ahead(
            features=batch.features,
            first=(*batch.drawn, *_carried(rewrite.of_route(AlltoallState).waves, first)),
            later=(*batch.drawn, *_carried(rewrite.of_route(AlltoallState).waves, later)),
        )


def _early_and_late(asked: Asked, *, running: Sequence[Exchange]) -> Wave:
    """Returns the rows of the next step in two parts, and fetches the early part.

    `running` are the exchanges of the running step, which may write any row that it requests.
    """
    exchange = asked.exchange
    is_late = are_requested(exchange, running)
    is_late_here = exchange.marks_from_owners(is_late, name=f"{exchange.name}/is_late")
    late = exchange.part(is_late_here, is_late, name=f"{exchange.name}/late")
    early = exchange.part(~is_late_here, ~is_late, name=f"{exchange.name}/early")
    come_early = _early_rows(asked, early)
    places = tf.gather(early_first(is_late_here, asked.distinct), _in_whole(asked))
    return Wave(asked, come_early, late, cut(places, asked.positions.lengths))


def are_requested(exchange: Exchange, others: Sequence[Exchange]) -> tf.Tensor:
    """Returns, for each row that ranks request from this rank through `exchange`, whether they also request it through
    one of `others` (bool [rows], ordered by table).

    A request for a row of a slot counts as a request for the same row of the slot's variable.
    """
    ranks = exchange.rewrite.plan.workers
    rows = {table.variable: -(-table.rows // ranks) for one in (exchange, *others) for table in one.tables}
    ends = list(itertools.accumulate(rows.values(), initial=0))
    starts = dict(zip(rows, ends, strict=False))
    return are_among(_keys(exchange, starts), tf.concat([_keys(one, starts) for one in others], axis=0), ends[-1])


def are_among(keys: tf.Tensor, others: tf.Tensor, most: int) -> tf.Tensor:
    """Returns, for each key in `keys` [n], whether `others` [m] also contains it (bool [n]). All keys are less than
    `most`."""
    none = tf.zeros([most], tf.bool)
    marked = tf.tensor_scatter_nd_update(none, others[:, tf.newaxis], tf.ones_like(others, tf.bool))
    return tf.gather(marked, keys)


def _keys(exchange: Exchange, starts: Mapping[str, int]) -> tf.Tensor:
    """Returns, for each requested row, a number (int64) that identifies the variable and the row."""
    own = exchange.own
    return tf.cast(own.whole, tf.int64) + of_numbers(
        [starts[table.variable] for table in exchange.tables], own.numbers, tf.int64
    )


def _early_rows(asked: Asked, early: Exchange) -> tuple[ByTable, ...]:
    """Returns the early rows of each group of `alike` tables, in ascending order of ids."""
    own = [asked.own_rows(table, places) for table, places in enumerate(early.own.parts)]
    messages = early.from_owners(own)
    return tuple(cut(tf.gather(one.rows, one.places.whole), one.places.lengths) for one in messages)


def _in_whole(asked: Asked) -> tf.Tensor:
    """Returns the position of each id among the distinct ids of all tables."""
    positions = asked.positions
    return positions.whole + tf.gather(asked.distinct.starts, positions.numbers)


def early_first(is_late: tf.Tensor, rows: ByTable) -> tf.Tensor:
    """Returns the new position of each of `rows` within its table (int32) after the early rows of each table have been
    moved before its late rows. `is_late` (bool) is ordered by table."""
    number = rows.numbers
    late = tf.cast(is_late, tf.int32)
    late_before = tf.cumsum(late, exclusive=True)
    early_of_table = count(number, rows.lengths.shape[0], ~is_late)
    late_of_table = rows.lengths - early_of_table
    late_before -= tf.gather(tf.cumsum(late_of_table, exclusive=True), number)
    here = tf.range(tf.size(late)) - tf.gather(rows.starts, number)
    return tf.where(is_late, tf.gather(early_of_table, number) + late_before, here - late_before)


def _carried(waves: Sequence[Wave], found: Wave) -> Iterator[Carried]:
    """Pairs the tensors of each wave with the matching tensors of `found`, which is a single wave with the tables of
    all `waves`."""
    start = 0
    for number, wave in enumerate(waves):
        end = start + len(wave.asked.ids)
        part = found.of(range(start, end), name=f"wave_{number}")
        yield from (Carried(*both) for both in zip(wave.tensors, part.tensors, strict=True))
        start = end
