"""Into how many pieces sparse variables are cut."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.errors import PlanError


class Cut(StrEnum):
    """How many pieces sparse variables get: each the same number, or all pieces about the same bytes."""

    ALIKE = "alike"
    BY_BYTES = "by_bytes"


def cut_variables(variables: Sequence[VariableInfo], partitions: int, cut: Cut) -> list[VariableInfo]:
    """The variables with their numbers of pieces in `min_partitions`: `partitions`, or with Cut.BY_BYTES so many of the
    largest and of others in proportion. A script's wish for at least so many is heeded."""
    marked = _marked_to_cut(variables, partitions)
    if cut is Cut.ALIKE:
        return marked
    return _in_equal_pieces(marked, {variable.name: variable.min_partitions or 1 for variable in variables})


def pieces_of(variable: VariableInfo) -> int:
    """How many pieces a cut variable wants to be; what the user's own partitioner split already counts towards it."""
    return math.ceil((variable.min_partitions or 1) / variable.pieces)


def refuse_more_pieces_than_rows(variables: Iterable[VariableInfo]) -> None:
    """Raises PlanError for the first sparse variable that has fewer rows than it would have pieces."""
    for variable in variables:
        rows = variable.shape[0] if variable.shape else 1
        if variable.gradient is GradientKind.SPARSE and pieces_of(variable) > rows:
            raise PlanError(
                f"partition.num={variable.min_partitions}: variable «{variable.name}» has {rows} rows; "
                f"choose at most {rows * variable.pieces}"
            )


def _marked_to_cut(variables: Sequence[VariableInfo], partitions: int) -> list[VariableInfo]:
    """Where a script has marked some with a partitioner, the wanted number for these, but no less than the script
    wants, and 1 for the others."""
    if all(variable.min_partitions is None for variable in variables):
        return [dataclasses.replace(variable, min_partitions=partitions) for variable in variables]
    return [
        dataclasses.replace(
            variable, min_partitions=1 if variable.min_partitions is None else max(variable.min_partitions, partitions)
        )
        for variable in variables
    ]


def _in_equal_pieces(variables: Sequence[VariableInfo], least: Mapping[str, int]) -> list[VariableInfo]:
    """The variables with fewer pieces where they are smaller than the largest one that is as finely cut: shards of all
    have about equal bytes. Never more than rows, and no fewer than `least`, which a script wants."""
    sparse = [variable for variable in variables if variable.gradient is GradientKind.SPARSE]
    finest = max((variable.min_partitions or 1 for variable in sparse), default=1)
    largest = max((_whole_bytes(one) for one in sparse if (one.min_partitions or 1) == finest), default=1)
    return [
        dataclasses.replace(variable, min_partitions=_share_of_pieces(variable, finest, largest, least[variable.name]))
        for variable in variables
    ]


def _share_of_pieces(variable: VariableInfo, finest: int, largest_bytes: int, least: int) -> int:
    wanted = variable.min_partitions or 1
    rows = (variable.shape[0] if variable.shape else 1) * variable.pieces
    share = round(finest * _whole_bytes(variable) / max(1, largest_bytes))
    return min(wanted, rows, max(least, share))


def _whole_bytes(variable: VariableInfo) -> int:
    """Of all pieces that the user's partitioner has made of it."""
    return variable.size_bytes * variable.pieces
