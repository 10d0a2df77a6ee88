"""Derives `VariableInfo`s from a captured graph's gradients and update ops."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.compute_times import Moments
from parallax_runner.analysis.counters import find_counters
from parallax_runner.analysis.growing import tables_of_keys
from parallax_runner.analysis.immovable import SERVER_READS, immovable_ops
from parallax_runner.analysis.initial_rows import whole_initial_values
from parallax_runner.analysis.lookahead_ids import unknown_ahead
from parallax_runner.analysis.own_updates import refuse_own_updates
from parallax_runner.analysis.rank_dependence import RankDependence
from parallax_runner.analysis.rows_written import rows_written
from parallax_runner.analysis.slots import slot_owners
from parallax_runner.analysis.unmerged import nonlinear_ops
from parallax_runner.analysis.update_region.whole_tables import updated_in_parts, whole_tables
from parallax_runner.analysis.variable_info import GradientKind, RowsWritten, VariableInfo
from parallax_runner.errors import PlanError
from parallax_runner.graph import edit, shard_ids
from parallax_runner.graph.boundary import Boundary, find_boundary
from parallax_runner.graph.devices import named_server
from parallax_runner.graph.effects import Effects
from parallax_runner.graph.fed import is_fed_scalar
from parallax_runner.graph.script_graph import min_partitions
from parallax_runner.graph.seeds import draws
from parallax_runner.graph.single_device_graph import Gradient, SingleDeviceGraph, Variable

# Ops that take the next element of the data in their own process.
CONSUMERS = ("IteratorGetNext", "QueueDequeue", "ReaderRead", "Unstage", "MapUnstage", "OrderedMapUnstage")


def classify(single: SingleDeviceGraph) -> tuple[VariableInfo, ...]:
    """Returns the information that planning needs about each variable that is not a slot, in creation order.

    Raises PlanError if the update of a variable reads a value that differs by rank.
    """
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(single.meta_graph.graph_def, name="")
    boundary = find_boundary(graph, single.train_op, single.gradients)
    gradients = _by_variable(boundary.gradients)
    step = edit.ancestors([graph.get_operation_by_name(single.train_op)])
    effects = Effects.of(graph)
    dependence = RankDependence(step, boundary.tensors, lambda op: _differs_by_rank(op, single, effects))
    owners = slot_owners(graph, boundary, single.variables, dependence)
    tables = _tables(single.variables, owners)
    updated = set(gradients) | set(owners)
    own = _written_by_each_rank(step, updated, effects, dependence)
    refuse_own_updates(graph, single, boundary, effects, own)
    _refuse_rank_dependent_updates(boundary, updated, own, effects, dependence)
    immovable = immovable_ops(graph, boundary, single, owners)
    sought = dependence.marks_of(own)
    counters = find_counters(
        graph,
        boundary,
        _possible_counters(single, owners, gradients),
        differs_by_rank=lambda op: dependence.differs(op, sought),
        server_reads=SERVER_READS,
    )
    nonlinear = nonlinear_ops(graph, boundary, owners)
    pieces = Counter(variable.full_name for variable in single.variables)
    moments = Moments(_ops(graph, [gradient.values for gradient in boundary.gradients]))
    raw = {name: _ops(graph, [one.values for one in found]) for name, found in gradients.items()}
    appear_at = moments.appear_at(raw)
    needed_at = moments.needed_at(graph.get_operation_by_name(variable.name) for variable in single.variables)
    in_step = step | edit.ancestors(_ops(graph, [single.loss]))
    transferred = whole_tables(graph, boundary, single.variables, owners, in_step)
    in_parts = updated_in_parts(graph, boundary, single.variables, owners)
    growing = tables_of_keys(in_step)
    return tuple(
        VariableInfo(
            name=variable.name,
            full_name=variable.full_name,
            pieces=pieces[variable.full_name],
            shape=variable.shape,
            dtype=variable.dtype,
            itemsize=tf.as_dtype(variable.dtype).size,
            gradient=_kind(gradients[variable.name]),
            gradient_rows=_rows(graph, gradients[variable.name]),
            slots=tuple(tables[variable.name][1:]),
            immovable_op=immovable[variable.name].op if variable.name in immovable else counters.get(variable.name),
            immovable_because=immovable[variable.name].why if variable.name in immovable else "",
            counts=variable.name in counters,
            min_partitions=min_partitions(single.meta_graph, variable.full_name, variable.full_shape),
            server=named_server(graph.get_operation_by_name(variable.name).device),
            nonlinear_op=nonlinear.get(variable.name),
            needed_at=needed_at[graph.get_operation_by_name(variable.name)],
            appears_at=appear_at.get(variable.name, 1.0),
            rows_written=_rows_written(graph, boundary, tables[variable.name], gradients[variable.name]),
            whole_tables=tuple(transferred.get(variable.name, ())),
            is_updated_in_parts=variable.name in in_parts,
            unknown_ahead=unknown_ahead(
                graph,
                boundary.region,
                tables[variable.name],
                gradients[variable.name],
                in_step,
                single.features.values(),
            ),
            whole_initial_values=whole_initial_values(graph, single.variables, tables[variable.name]),
            grows=variable.name in growing,
        )
        for variable in single.variables
        if variable.name not in owners
    )


def _by_variable(gradients: Iterable[Gradient]) -> defaultdict[str, list[Gradient]]:
    found = defaultdict(list)
    for gradient in gradients:
        found[gradient.variable].append(gradient)
    return found


def _differs_by_rank(op: tf.Operation, single: SingleDeviceGraph, effects: Effects) -> bool:
    if effects.draws(op):
        return True
    # rewrite/every_route/fed_alike.py makes sure that all ranks feed the same number.
    is_alike = is_fed_scalar(op, single.features.values())
    return draws_or_consumes(op) and not is_alike


def _possible_counters(
    single: SingleDeviceGraph, owners: Mapping[str, str], gradients: Mapping[str, list[Gradient]]
) -> list[str]:
    """Returns the names of the variables that are neither trained, nor slots, nor merged."""
    found = []
    for variable in single.variables:
        is_trained = bool(gradients.get(variable.name))
        is_slot = variable.name in owners
        if not is_trained and not is_slot and variable not in single.merged:
            found.append(variable.name)
    return found


def _rows_written(
    graph: tf.Graph, boundary: Boundary, table: Sequence[str], gradients: Iterable[Gradient]
) -> RowsWritten:
    if not gradients:
        return RowsWritten.NOTHING
    return rows_written(graph, boundary.region, table, gradients, reads=SERVER_READS)


def _tables(variables: Iterable[Variable], owners: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns the names of each variable that is not a slot and of its slots."""
    tables = {variable.name: [variable.name] for variable in variables if variable.name not in owners}
    for slot, owner in owners.items():
        if owner in tables:
            tables[owner].append(slot)
    return tables


def _ops(graph: tf.Graph, tensors: Iterable[str]) -> list[tf.Operation]:
    return [graph.get_tensor_by_name(name).op for name in tensors]


def _kind(gradients: list[Gradient]) -> GradientKind:
    if not gradients:
        return GradientKind.NONE
    sparse = all(gradient.indices is not None for gradient in gradients)
    return GradientKind.SPARSE if sparse else GradientKind.DENSE


def _rows(graph: tf.Graph, gradients: list[Gradient]) -> int | None:
    if not gradients or any(gradient.indices is None for gradient in gradients):
        return None
    # Capture hides the number of rows from the model (gradients_hook.py), but the original tensor still has this number
    # in its shape.
    raw = [graph.get_tensor_by_name(gradient.indices or "").op.inputs[0] for gradient in gradients]
    counts = [tensor.shape.num_elements() for tensor in raw]
    return None if None in counts else sum(count for count in counts if count is not None)


def _refuse_rank_dependent_updates(
    boundary: Boundary,
    updated: set[str],
    own: Mapping[str, str],
    effects: Effects,
    dependence: RankDependence,
) -> None:
    sought = dependence.marks_of(own)
    for op in sorted(boundary.region, key=lambda op: op.name):
        written = [name for name in effects.written_by(op) if name in updated]
        if written and dependence.differs(op, sought):
            raise PlanError(
                f"the update of «{written[0]}» reads {dependence.first_source(op, own)}, which differs by rank; "
                "an update that uses an aggregated gradient must be the same on all ranks"
            )


def _written_by_each_rank(
    step: set[tf.Operation], updated: set[str], effects: Effects, dependence: RankDependence
) -> dict[str, str]:
    """Returns the variables without a gradient that a step sets to rank-dependent values.

    For example, a step may write the mean of its losses to a variable. The dict maps each variable to the name of the
    op that writes it.
    """
    found: dict[str, str] = {}
    sought = dependence.marks_of([])
    writes = {op: set(effects.written_by(op)) - updated for op in step}
    before = -1
    while len(found) > before:  # the value that a step writes to a variable can depend on another such variable
        before = len(found)
        for op in sorted(filter(writes.get, writes), key=lambda op: op.name):
            if dependence.differs(op, sought):
                new = sorted(writes[op] - found.keys())
                found |= dict.fromkeys(new, f"(which «{op.name}» writes)")
                sought |= dependence.marks_of(new)
    return found


def draws_or_consumes(op: tf.Operation) -> bool:
    """Returns whether the op's output differs by rank, because it depends on the rank's data or random draws."""
    attributes = op.node_def.attr
    return (
        op.type == "Placeholder"
        or op.type.startswith(CONSUMERS)
        or draws(op.node_def)
        or (shard_ids.ATTRIBUTE in attributes and attributes[shard_ids.ATTRIBUTE].s.decode() == shard_ids.SHARD_ID)
    )
