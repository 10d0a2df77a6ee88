"""Pass for vocabularies that grow: ask the owners of keys for the keys' rows (docs/design/0103).

The owner of a key is the rank that owns its bucket: bucket b is on rank b mod ranks. Ranks send keys to the owners,
which search their part of the map, insert new keys, and send row numbers back. Then the rows are looked up as in any
other table: row i is on rank i mod ranks. Before this lookup, the owners of keys send the new keys to the owners of
their rows, which write the initial values.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.growing.hashed_keys import buckets_of, initial_rows
from parallax_runner.graph.growing.key_calls import rows_of_known, rows_with_inserts
from parallax_runner.graph.growing.marks import KeyCall, key_calls
from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.initial_values.blocks import assign_initial
from parallax_runner.rewrite.placement import Shard
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.routes.alltoall.over_ranks import OverRanks
from parallax_runner.routes.alltoall.row_exchange import swap


@rewrite_pass(writes=["placements", "initializers", "sent", "stands_for"])
def ask_for_rows_of_keys(rewrite: Rewrite) -> None:
    """Replaces each op that maps keys to rows by an exchange with the owners of the keys.

    Creates this rank's part of the maps, and of the tables whose initial rows are written here.
    """
    spread = {planned.name: planned for planned in rewrite.plan.by_route(Route.ALLTOALL)}
    if not spread:
        return
    for number, call in enumerate(key_calls(rewrite.graph.get_operations())):
        with tf.control_dependencies(call.op.control_inputs), tf.name_scope(f"grow_{number}/"):
            _replace(rewrite, call, name=f"grow_{number}")


def own_rows(rewrite: Rewrite, name: str, variable: str, shape: tuple[int, ...]) -> OverRanks:
    """Creates the variable that holds this rank's own rows of `name`, which has this shape. `variable` is its name in
    the plan, or the variable to which the slot belongs."""
    rank, ranks, rows = rewrite.rank, rewrite.plan.workers, shape[0]
    count = len(range(rank, rows, ranks))
    with tf.control_dependencies(None), tf.name_scope(""):
        handle = tf.raw_ops.VarHandleOp(
            dtype=rewrite.op(name).get_attr("dtype"),
            shape=[count, *shape[1:]],
            shared_name=f"{name}/own_rows",
            name=f"{name}/own_rows",
        )
    own = Shard(handle, rank, rows=count, device=rewrite.worker_device, step=ranks)
    return OverRanks(variable, (own,), rank=rank, ranks=ranks, rows=rows)


@dataclass(frozen=True)
class _Asked:
    """Keys that were sent to their owners.

    `came` (int64) are the keys that arrived at this rank, `came_times` (int64) how often each occurs in a batch, or
    None if that was not sent, and `came_counts` (int32 [ranks]) how many came from each rank. `places` (int32)
    contains the position of each of this rank's keys among those that it sent.
    """

    came: tf.Tensor
    came_times: tf.Tensor | None
    came_counts: tf.Tensor
    places: tf.Tensor


def _replace(rewrite: Rewrite, call: KeyCall, *, name: str) -> None:
    ranks = rewrite.plan.workers
    shape = call.table.shape
    placements = [_part_of_map(rewrite, handle.op) for handle in call.handles.given]
    handles = shape.handles([placement.own.handle for placement in placements])
    accounted = placements[0].variable
    asked = _send_keys(rewrite, call, accounted, name=name)
    if call.write is None:
        answers = rows_of_known(handles, asked.came, shape, ranks=ranks)
    else:
        answers, new_rows, new_keys = rows_with_inserts(handles, asked.came, shape, ranks=ranks, times=asked.came_times)
        written = _write_initial(rewrite, call, new_rows, new_keys, name=name)
        for old, new in zip(call.writes, written, strict=True):
            _hand_over_controls(old, new)
    answered, _ = swap(rewrite, answers, asked.came_counts[:, tf.newaxis], [accounted], name=f"{name}/rows")
    rows = tf.reshape(tf.gather(answered, asked.places), tf.shape(call.keys))
    _hand_over_controls(call.op, rows.op)
    edit.reconnect(call.rows, rows, where=lambda _: True)
    rewrite.stands_for[call.rows.name] = rows


def _part_of_map(rewrite: Rewrite, handle: tf.Operation) -> OverRanks:
    """Returns the placement of a variable of a map, one row for each bucket."""
    if handle.name not in rewrite.placements:
        _place(rewrite, handle)
    placement = rewrite.placements[handle.name]
    assert isinstance(placement, OverRanks)
    return placement


def _place(rewrite: Rewrite, handle: tf.Operation) -> None:
    shape = tuple(tf.TensorShape(handle.get_attr("shape")).as_list())
    placement = rewrite.placements[handle.name] = own_rows(rewrite, handle.name, handle.name, shape)
    (variable,) = [one for one in rewrite.single.variables if one.name == handle.name]
    value = rewrite.op(variable.initializer).inputs[1]
    with tf.control_dependencies(None):
        assigned = assign_initial(rewrite.initializers, placement.own, value, is_cut=True)
    rewrite.initializers.own.append(assigned)


def _send_keys(rewrite: Rewrite, call: KeyCall, variable: str, *, name: str) -> _Asked:
    """Sends each distinct key once to its owner, with its occurrences if they are counted."""
    ranks = rewrite.plan.workers
    distinct, number_of, times = tf.unique_with_counts(call.keys, tf.int64)
    owners = tf.cast(buckets_of(distinct) % ranks, tf.int32)
    order = tf.argsort(owners, stable=True)
    counts = tf.math.bincount(owners, minlength=ranks, maxlength=ranks)
    is_counted = call.write is not None and call.table.shape.admits
    message = tf.stack([distinct, _own_times(rewrite, times)], axis=1) if is_counted else distinct
    message = tf.gather(message, order)
    came, came_counts = swap(rewrite, message, counts[:, tf.newaxis], [variable], name=f"{name}/keys")
    places = tf.gather(tf.math.invert_permutation(order), number_of)
    if is_counted:
        return _Asked(came[:, 0], came[:, 1], came_counts, places)
    return _Asked(came, None, came_counts, places)


def _own_times(rewrite: Rewrite, times: tf.Tensor) -> tf.Tensor:
    """Returns how often this rank's examples have keys. A rank without examples has one of another rank."""
    if rewrite.share is None:
        return times
    return tf.where(rewrite.share > 0, times, tf.zeros_like(times))


def _write_initial(
    rewrite: Rewrite, call: KeyCall, rows: tf.Tensor, keys: tf.Tensor, *, name: str
) -> list[tf.Operation]:
    """Sends new rows and their keys to the owners of the rows. Returns the ops that write the initial values there, in
    the order of `call.writes`."""
    assert call.write is not None
    table, ranks = call.write.inputs[0].op, rewrite.plan.workers
    own = _own_part(rewrite, table, table)
    owners = tf.cast(rows % ranks, tf.int32)
    message = tf.gather(tf.stack([rows, keys], axis=1), tf.argsort(owners, stable=True))
    counts = tf.math.bincount(owners, minlength=ranks, maxlength=ranks)
    came, _ = swap(rewrite, message, counts[:, tf.newaxis], [table.name], name=f"{name}/new")
    places = own.places_of(came[:, 0])
    values = initial_rows(came[:, 1], seed=call.table.seed, columns=call.table.columns, scale=call.table.scale)
    written = [_write(own, places, tf.cast(values, own.dtype))]
    for one in call.slot_writes:
        slot = _own_part(rewrite, one.slot, table)
        shape = tf.concat([tf.shape(places), tf.TensorShape(one.slot.get_attr("shape"))[1:]], axis=0)
        written.append(_write(slot, places, tf.fill(shape, tf.constant(one.initial, slot.dtype))))
    return written


def _own_part(rewrite: Rewrite, handle: tf.Operation, table: tf.Operation) -> Shard:
    """Returns this rank's own rows of a table or of one of its slots, and creates them if needed."""
    if handle.name not in rewrite.placements:
        shape = tuple(tf.TensorShape(handle.get_attr("shape")).as_list())
        rewrite.placements[handle.name] = own_rows(rewrite, handle.name, table.name, shape)
    placement = rewrite.placements[handle.name]
    assert isinstance(placement, OverRanks)
    return placement.own


def _write(own: Shard, places: tf.Tensor, values: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.ResourceScatterUpdate(resource=own.handle, indices=places, updates=values)


def _hand_over_controls(old: tf.Operation, new: tf.Operation) -> None:
    """Makes all ops that wait for `old` wait for `new` instead."""
    for op in old._control_outputs:
        edit.set_control_inputs(op, [new if control is old else control for control in op.control_inputs])
