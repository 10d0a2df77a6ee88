"""Looks up rows on servers in two parts: rows that arrived before the step, and the other rows."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.exchange.compression import half_dtype
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.routes.ps.on_servers import OnServers, at_ids, fetch
from parallax_runner.rewrite.state import Rewrite

KEY_BYTES = 8  # ranks exchange the ids of their rows as 64-bit numbers


@dataclass(frozen=True)
class TwoParts:
    """A lookup of rows on servers by `ids` of any shape.

    `early` contains the rows that arrived before the step, and `late` [n] the ids of the other rows. For each id,
    `places` (int32) contains the position of its row among the early rows, followed by the late rows. If nothing is
    fed, all rows are late. If `narrow` is given, rows are cast to this dtype before they are sent.
    """

    placement: OnServers
    ids: tf.Tensor
    narrow: tf.DType | None
    early: tf.Tensor
    late: tf.Tensor
    places: tf.Tensor


def gather_in_two_parts(
    rewrite: Rewrite, placement: OnServers, ids: tf.Tensor, shape: tuple[int, ...], narrow: tf.DType | None
) -> tf.Tensor:
    """Looks up rows like `gather`. Rows that the previous step has requested are fed, and not requested again."""
    distinct, positions = tf.unique(tf.reshape(ids, [-1]))
    none = tf.zeros([0, *shape[1:]], narrow or placement.shards[0].dtype)
    early = tf.placeholder_with_default(none, [None, *shape[1:]])
    parts = TwoParts(placement, ids, narrow, early, tf.identity(distinct), tf.identity(positions))
    rewrite.in_two_parts.append(parts)
    _count_early(rewrite, parts)
    rows = tf.concat([early, fetch(rewrite, placement, parts.late, narrow=narrow)], axis=0)
    return at_ids(rows, parts.places, ids, shape)


def _count_early(rewrite: Rewrite, parts: TwoParts) -> None:
    """Counts the bytes that were sent for this step before the step began: the keys of all rows, which each rank sends
    to all others, and the early rows with their ids."""
    variable, early, late = parts.placement.variable, parts.early, parts.late
    half = half_dtype(rewrite, early.dtype) or early.dtype
    others = rewrite.plan.workers - 1
    rewrite.sent += [
        Sent(late, others * KEY_BYTES / late.dtype.size, variable, tf.shape(early)[0] + tf.size(late)),
        Sent(early, half.size / early.dtype.size, variable),
        Sent(late, 1, variable, tf.shape(early)[0]),
    ]
