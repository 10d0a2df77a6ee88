"""Pass: spread variables of the alltoall route over the ranks, and request looked-up rows from their owners.

Row i is on rank i mod ranks. Words are often numbered by frequency, so contiguous ranges would put the rows of all
frequent words on one rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.immovable import SERVER_READS
from parallax_runner.graph import edit
from parallax_runner.plan.plan import Route, VariablePlan
from parallax_runner.rewrite.initial_values.blocks import assign_initial
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.rewrite.schedule.buckets import buckets_from_owners
from parallax_runner.routes.alltoall.grow import own_rows
from parallax_runner.routes.alltoall.known_ids import KnownIds
from parallax_runner.routes.alltoall.lookahead_rows import all_late, rows_of
from parallax_runner.routes.alltoall.lookup import ask, looked_up
from parallax_runner.routes.alltoall.over_ranks import OverRanks, whole_on_all
from parallax_runner.routes.alltoall.state import AlltoallState


@dataclass(frozen=True)
class Lookup:
    """An op that looks up rows of a variable spread over the ranks. `is_ahead` has the same meaning as in the plan."""

    op: tf.Operation
    variable: str
    is_ahead: bool


@rewrite_pass(
    reads=["train_op"],
    writes=[
        "placements",
        "initializers",
        "sent",
        "stands_for",
        "AlltoallState.known_ids",
        "AlltoallState.waves",
        "row_orders",
    ],
)
def spread_over_ranks(rewrite: Rewrite) -> None:
    """Creates this rank's part of every variable on the alltoall route and of its slots, and redirects their reads.

    Reads in the update region are not changed here. rewrite/update_region/update_placed.py redirects these reads.
    """
    variables = {variable.name: variable for variable in rewrite.single.variables}
    lookups: list[Lookup] = []
    for planned in rewrite.plan.by_route(Route.ALLTOALL):
        for name in (planned.name, *planned.slots):
            if name not in rewrite.placements:
                rewrite.placements[name] = own_rows(rewrite, name, planned.name, planned.shape)
            placement = over_ranks(rewrite, name)
            value = rewrite.op(variables[name].initializer).inputs[1]
            rewrite.initializers.own.append(assign_initial(rewrite.initializers, placement.own, value, is_cut=True))
            lookups += _redirect_reads(rewrite, placement, name, planned)
    for number, (is_ahead, together) in enumerate(_in_waves(rewrite, lookups)):
        _look_up(rewrite, together, name=f"lookup_{number}", is_ahead=is_ahead)


def over_ranks(rewrite: Rewrite, variable: str) -> OverRanks:
    """Returns the placement of a variable on the alltoall route, or of one of its slots."""
    placement = rewrite.placement_of(variable)
    assert isinstance(placement, OverRanks), variable
    return placement


def _redirect_reads(rewrite: Rewrite, placement: OverRanks, name: str, planned: VariablePlan) -> list[Lookup]:
    """Redirects all reads outside the update region except lookups. Returns the lookups."""
    lookups, whole_reads = [], []
    for op in sorted(rewrite.op(name).outputs[0].consumers(), key=lambda op: op.name):
        in_region = op in rewrite.region
        if op.type == "ResourceGather" and not in_region:
            lookups.append(Lookup(op, name, planned.is_ahead))
        elif op.type == "ReadVariableOp" and not in_region:
            if op.outputs[0].consumers():  # TensorFlow creates a read op for each variable, but the op may be unused
                whole_reads.append(op)
        elif op.type == "VariableShape":
            _stand_in(rewrite, op, tf.constant(planned.shape, op.outputs[0].dtype))
        elif op.type == "VarIsInitializedOp":
            # This op exists only if another variable is initialized from this variable. If its result is False, the
            # other variable uses this variable's initial value, not its current value.
            _stand_in(rewrite, op, tf.constant(False))
        else:
            assert in_region or op.type not in SERVER_READS, op
    for op in whole_reads:
        _stand_in(rewrite, op, _read_whole(rewrite, op, placement))
    return lookups


def _read_whole(rewrite: Rewrite, op: tf.Operation, placement: OverRanks) -> tf.Tensor:
    with tf.control_dependencies(op.control_inputs), tf.name_scope(f"own_rows/{op.name}/"):
        return whole_on_all(rewrite, placement.own.read(), placement, name="whole")


def _stand_in(rewrite: Rewrite, op: tf.Operation, value: tf.Tensor) -> None:
    edit.reconnect(op.outputs[0], value, where=lambda _: True)
    rewrite.stands_for[op.outputs[0].name] = value


def _in_waves(rewrite: Rewrite, lookups: Sequence[Lookup]) -> list[tuple[bool, list[Lookup]]]:
    """Groups lookups that can share one exchange.

    No lookup in a group needs the rows of another lookup in the group, and all lookups in the group are needed by the
    same fetches. Returns, for each group, its lookups and whether the previous step requests their rows.
    """
    by_op = {lookup.op: lookup for lookup in lookups}
    needs = {op: edit.ancestors([op]) for op in by_op}
    in_step, *elsewhere = [edit.ancestors(ops) for ops in rewrite.fetched_together()]
    wave: dict[tf.Operation, int] = {}
    for op in sorted(by_op, key=lambda op: (len(needs[op] & by_op.keys()), op.name)):
        wave[op] = 1 + max((wave[other] for other in needs[op] & by_op.keys() if other is not op), default=-1)
    groups: dict[tuple[Any, ...], list[Lookup]] = defaultdict(list)
    for op, lookup in sorted(by_op.items(), key=lambda item: item[0].name):
        is_ahead = lookup.is_ahead and op in in_step
        fetches = (op in in_step, *(op in found for found in elsewhere))
        waits_for = tuple(sorted(control.name for control in op.control_inputs))
        groups[wave[op], fetches, waits_for, is_ahead].append(lookup)
    return [(key[-1], groups[key]) for key in sorted(groups)]


def _look_up(rewrite: Rewrite, lookups: list[Lookup], *, name: str, is_ahead: bool) -> None:
    """Replaces the lookups with one exchange. Lookups in the same variable send each distinct id once."""
    by_variable: dict[str, list[Lookup]] = defaultdict(list)
    for lookup in lookups:
        by_variable[lookup.variable].append(lookup)
    placements = [over_ranks(rewrite, variable) for variable in by_variable]
    readers = [
        (placement.variable, [one.op for one in group])
        for placement, group in zip(placements, by_variable.values(), strict=True)
    ]
    in_any_fetch = edit.ancestors(op for ops in rewrite.fetched_together() for op in ops)
    buckets = buckets_from_owners(rewrite, readers, in_any_fetch)
    with tf.control_dependencies(lookups[0].op.control_inputs), tf.name_scope(f"{name}/"):
        ids = [_ids_of(group) for group in by_variable.values()]
        asked = ask(rewrite, placements, ids, name=name)
        if is_ahead:
            wave = all_late(asked)
            rewrite.of_route(AlltoallState).waves.append(wave)
            rows = rows_of(wave, buckets)
        else:
            rows = looked_up(asked, buckets)
        rewrite.of_route(AlltoallState).known_ids += [
            KnownIds(variable, each, asked, number)
            for number, (variable, each) in enumerate(zip(by_variable, ids, strict=True))
        ]
        for group, found in zip(by_variable.values(), rows, strict=True):
            for lookup, value in zip(group, _apart(group, found), strict=True):
                _stand_in(rewrite, lookup.op, value)


def _ids_of(group: list[Lookup]) -> tf.Tensor:
    """Concatenates the ids of lookups in the same variable. The ids of a single lookup keep their shape."""
    ids = [lookup.op.inputs[1] for lookup in group]
    if len(ids) == 1:
        return ids[0]
    wide = tf.int64 if any(each.dtype == tf.int64 for each in ids) else ids[0].dtype
    return tf.concat([tf.cast(tf.reshape(each, [-1]), wide) for each in ids], axis=0)


def _apart(group: list[Lookup], rows: tf.Tensor) -> list[tf.Tensor]:
    if len(group) == 1:
        return [rows]
    ids = [lookup.op.inputs[1] for lookup in group]
    parts = tf.split(rows, tf.stack([tf.size(each) for each in ids]), num=len(ids))
    found = []
    for each, part in zip(ids, parts, strict=True):
        value = tf.reshape(part, tf.concat([tf.shape(each), tf.shape(rows)[1:]], axis=0))
        value.set_shape(each.shape.concatenate(rows.shape[1:]))
        found.append(value)
    return found
