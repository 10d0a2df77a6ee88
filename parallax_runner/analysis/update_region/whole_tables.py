"""Finds ops in a step that require all rows of a variable to be sent between servers and a worker. Applies the same
rules as the rewrite."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.rows_written import BY_IDS
from parallax_runner.analysis.update_region.contents import FULL_ROWS, FullRows, Ids, Rows
from parallax_runner.analysis.update_region.row_list import GradientList
from parallax_runner.analysis.update_region.rules import (
    Divides,
    OnShards,
    Operand,
    PassedOn,
    Treatment,
    treatment,
)
from parallax_runner.analysis.update_region.slice_division import slice_division
from parallax_runner.analysis.variable_info import WholeTable
from parallax_runner.graph import edit
from parallax_runner.graph.boundary import Boundary
from parallax_runner.graph.edit import is_write
from parallax_runner.graph.single_device_graph import Variable


@dataclass
class _Visit:
    """The state of the graph traversal.

    `values` contains, by name, the tensors that are sharded in the same way as a variable's rows. `made` contains the
    names of tensors that are derived only from lists of rows. `found` maps each variable to the ops found so far.
    """

    homes: Mapping[str, Variable]
    values: dict[str, Operand]
    made: set[str] = field(default_factory=set)
    found: dict[str, list[WholeTable]] = field(default_factory=lambda: defaultdict(list))
    brought: set[str] = field(default_factory=set)

    def visit(self, op: tf.Operation) -> None:
        operands = [self.values.get(tensor.name, Operand(tensor.shape)) for tensor in op.inputs]
        home = next((self.homes[handle.name] for handle in edit.handle_of(op) if handle.name in self.homes), None)
        if home is not None and op.type == "ReadVariableOp":
            self._sets(op.outputs[0], Operand(op.outputs[0].shape, FULL_ROWS, home.name, home.shape[0]))
        elif home is not None and op.type == "ResourceGather":
            self._look_up(op, operands[1], home)
        elif home is not None and is_write(op):
            self._write(op, operands, home)
        else:
            self._treat(op, operands, treatment(op, operands, slice_division(op)))

    def _look_up(self, op: tf.Operation, ids: Operand, home: Variable) -> None:
        if isinstance(ids.content, Ids) and ids.layout == home.name:
            output = op.outputs[0]
            self._sets(output, Operand(output.shape, Rows(ids.content.of), home.name, home.shape[0]))

    def _sets(self, tensor: tf.Tensor, operand: Operand, *, is_made: bool = False) -> None:
        self.values[tensor.name] = operand
        if is_made:
            self.made.add(tensor.name)

    def _write(self, op: tf.Operation, operands: list[Operand], home: Variable) -> None:
        for tensor, operand in zip(op.inputs, operands, strict=True):
            if operand.content is not None and operand.layout != home.name:
                self._bring(op, tensor)
            elif self._goes_to_shards(op, tensor, operand):
                self.brought.add(tensor.name)
                self._add(op, home.name, tensor)

    def _goes_to_shards(self, op: tf.Operation, tensor: tf.Tensor, operand: Operand) -> bool:
        """Returns whether a worker must send all rows to the op that writes them."""
        is_value = tensor.dtype != tf.resource and tensor.shape.rank != 0
        is_new = operand.content is None and tensor.name not in self.brought
        return is_value and is_new and not op.type.startswith(BY_IDS)

    def _treat(self, op: tf.Operation, operands: list[Operand], how: Treatment) -> None:
        if isinstance(how, OnShards | Divides):
            first = next(operand for operand in operands if operand.content is not None)
            is_made = isinstance(how, Divides) or how.is_made or self._is_made_of(op)
            for output, content in zip(op.outputs, how.contents, strict=False):
                self._sets(output, Operand(output.shape, content, first.layout, first.rows), is_made=is_made)
        elif isinstance(how, PassedOn):
            self._pass_on(op, operands)
        elif how is None:
            for tensor in op.inputs:
                self._bring(op, tensor)

    def _pass_on(self, op: tf.Operation, operands: list[Operand]) -> None:
        for output, tensor, operand in zip(op.outputs, op.inputs, operands, strict=True):
            if operand.content is not None:
                self._sets(output, operand, is_made=tensor.name in self.made)

    def _is_made_of(self, op: tf.Operation) -> bool:
        return all(tensor.name in self.made for tensor in op.inputs if tensor.name in self.values)

    def _bring(self, op: tf.Operation, tensor: tf.Tensor) -> None:
        """Records the rows that a worker receives for an op that reads a tensor.

        The worker receives the list if the tensor is derived from a list of rows, otherwise all rows.
        """
        operand = self.values.get(tensor.name)
        if operand is None or tensor.name in self.brought:
            return
        self.brought.add(tensor.name)
        if tensor.name in self.made:
            for source in tensor.op.inputs:
                self._bring(op, source)
        elif isinstance(operand.content, FullRows):
            self._add(op, str(operand.layout), tensor, rows=operand.rows)

    def _add(self, op: tf.Operation, variable: str, tensor: tf.Tensor, rows: int | None = None) -> None:
        row = tensor.shape[1:].num_elements() or 1
        count = tensor.shape.num_elements() if rows is None else rows * row
        self.found[variable].append(WholeTable(op.name, (count or row) * tensor.dtype.size))


def whole_tables(
    graph: tf.Graph,
    boundary: Boundary,
    variables: Iterable[Variable],
    owners: Mapping[str, str],
    step: Iterable[tf.Operation],
) -> dict[str, list[WholeTable]]:
    """Returns the ops in a step that would require all rows to be sent between shards and a worker if the variable were
    sharded.

    The dict maps each variable with only sparse gradients to these ops. Transfers of the rows of the variable's slots
    are included.
    """
    by_name = {variable.name: variable for variable in variables}
    sparse = {gradient.variable for gradient in boundary.gradients} - _dense(boundary)
    homes = _homes(by_name, sparse, owners)
    visit = _visited(homes, boundary, _sparse_aggregates(graph, boundary, by_name, sparse))
    for op in sorted(set(step) - boundary.region, key=lambda op: op.name):
        for handle in edit.handle_of(op):
            if op.type == "ReadVariableOp" and handle.name in homes and op.outputs[0].consumers():
                owner = owners.get(handle.name, handle.name)
                size = by_name[handle.name].shape
                visit._add(op, owner, op.outputs[0], rows=size[0] if size else 1)
    return visit.found


def updated_in_parts(
    graph: tf.Graph, boundary: Boundary, variables: Iterable[Variable], owners: Mapping[str, str]
) -> set[str]:
    """Returns the variables with dense gradients whose update can run separately on each shard."""
    by_name = {variable.name: variable for variable in variables}
    dense = {name for name in _dense(boundary) if by_name[name].shape}
    aggregates = {
        one.values: Operand(
            graph.get_tensor_by_name(one.values).shape, FULL_ROWS, one.variable, by_name[one.variable].shape[0]
        )
        for one in boundary.gradients
        if one.variable in dense and one.indices is None
    }
    aggregates |= _sparse_aggregates(graph, boundary, by_name, dense)
    return dense - _visited(_homes(by_name, dense, owners), boundary, aggregates).found.keys()


def _dense(boundary: Boundary) -> set[str]:
    return {gradient.variable for gradient in boundary.gradients if gradient.indices is None}


def _homes(by_name: Mapping[str, Variable], names: Iterable[str], owners: Mapping[str, str]) -> dict[str, Variable]:
    """Maps each of the named variables and each of their slots to the variable whose rows would be stored in the same
    places."""
    homes = {name: by_name[name] for name in names}
    return homes | {slot: homes[owner] for slot, owner in owners.items() if owner in homes}


def _visited(homes: Mapping[str, Variable], boundary: Boundary, aggregates: dict[str, Operand]) -> _Visit:
    visit = _Visit(homes, aggregates)
    for op in edit.in_order(set(boundary.region)):
        if op.type != "VarHandleOp":
            visit.visit(op)
    return visit


def _sparse_aggregates(
    graph: tf.Graph, boundary: Boundary, by_name: Mapping[str, Variable], sparse: Iterable[str]
) -> dict[str, Operand]:
    """Returns the aggregated sparse gradients as operands that are sharded in the same way as their variables."""
    found = {}
    for gradient in boundary.gradients:
        if gradient.variable not in sparse or gradient.indices is None:
            continue
        rows_of, rows = GradientList(gradient.values), by_name[gradient.variable].shape[0]
        for name, content in ((gradient.values, Rows(rows_of)), (gradient.indices, Ids(rows_of))):
            shape = graph.get_tensor_by_name(name).shape
            found[name] = Operand(shape, content, gradient.variable, rows)
    return found
