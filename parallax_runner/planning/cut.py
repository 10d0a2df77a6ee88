"""Decides the number of pieces into which sparse variables are cut."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.errors import PlanError


class Cut(StrEnum):
    """How sparse variables are cut: into the same number of pieces for each variable, or into pieces of about the same
    size in bytes."""

    ALIKE = "alike"
    BY_BYTES = "by_bytes"


def cut_variables(variables: Sequence[VariableInfo], partitions: int, cut: Cut) -> list[VariableInfo]:
    """Returns the variables with their numbers of pieces in `min_partitions`.

    Each variable gets `partitions` pieces, or one per row if it has fewer rows. With Cut.BY_BYTES, only the largest
    variable gets that many pieces, and the others get fewer pieces in proportion to their bytes. No variable gets fewer
    pieces than a script requests.
    """
    marked = _marked_to_cut(variables, partitions)
    if cut is Cut.ALIKE:
        return marked
    return _in_equal_pieces(marked, {variable.name: variable.min_partitions or 1 for variable in variables})


def pieces_of(variable: VariableInfo) -> int:
    """Returns the number of pieces into which a variable is cut.

    Pieces made by the user's own partitioner count towards the requested number.
    """
    return math.ceil((variable.min_partitions or 1) / variable.pieces)


def refuse_more_pieces_than_rows(variables: Iterable[VariableInfo]) -> None:
    """Raises PlanError for the first sparse variable for which a script requests more pieces than it has rows."""
    for variable in variables:
        rows = _rows(variable)
        if variable.gradient is GradientKind.SPARSE and (variable.min_partitions or 1) > rows:
            raise PlanError(
                f"the partitioner of variable «{variable.name}» requests {variable.min_partitions} pieces, but the "
                f"variable has {rows} rows; request at most {rows}"
            )


def _marked_to_cut(variables: Sequence[VariableInfo], partitions: int) -> list[VariableInfo]:
    """Sets `min_partitions`.

    If a script has marked variables with a partitioner, only the marked variables are cut, into at least the number of
    pieces that the script requests.
    """
    if all(variable.min_partitions is None for variable in variables):
        return [dataclasses.replace(variable, min_partitions=_at_most(variable, partitions)) for variable in variables]
    return [
        dataclasses.replace(
            variable,
            min_partitions=1
            if variable.min_partitions is None
            else max(variable.min_partitions, _at_most(variable, partitions)),
        )
        for variable in variables
    ]


def _at_most(variable: VariableInfo, partitions: int) -> int:
    """Returns the number of pieces, which no variable has more of than rows."""
    return min(partitions, _rows(variable))


def _rows(variable: VariableInfo) -> int:
    """Returns the number of rows of the whole variable, of which the user's partitioner may have made pieces."""
    return max(1, (variable.shape[0] if variable.shape else 1) * variable.pieces)


def _in_equal_pieces(variables: Sequence[VariableInfo], least: Mapping[str, int]) -> list[VariableInfo]:
    """Gives smaller variables fewer pieces. All shards then have about the same number of bytes.

    Of the variables with the most pieces, the largest keeps its number of pieces. A variable never gets more pieces
    than it has rows, or fewer pieces than its minimum in `least`, which a script sets.
    """
    # No server has the rows of a vocabulary that grows.
    sparse = [one for one in variables if one.gradient is GradientKind.SPARSE and not one.grows]
    finest = max((variable.min_partitions or 1 for variable in sparse), default=1)
    largest = max((_whole_bytes(one) for one in sparse if (one.min_partitions or 1) == finest), default=1)
    return [
        dataclasses.replace(variable, min_partitions=_share_of_pieces(variable, finest, largest, least[variable.name]))
        for variable in variables
    ]


def _share_of_pieces(variable: VariableInfo, finest: int, largest_bytes: int, least: int) -> int:
    wanted = variable.min_partitions or 1
    share = round(finest * _whole_bytes(variable) / max(1, largest_bytes))
    return min(wanted, _rows(variable), max(least, share))


def _whole_bytes(variable: VariableInfo) -> int:
    """Returns the total size in bytes of all pieces that the user's partitioner made from the variable."""
    return variable.size_bytes * variable.pieces
