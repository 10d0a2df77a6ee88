"""comm.mpi.use_allgatherv: what the chief's last step ran. That it is right is for test_equivalence.py to show."""

from __future__ import annotations

import itertools

import pytest

from tests.parallel.cases import MATRIX, Case
from tests.parallel.conftest import Launched

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("case", [case for case in MATRIX if case.use_allgatherv], ids=lambda case: case.name)
def test_sparse_gradients_travel_by_allgatherv(case: Case, launched: dict[int, Launched]) -> None:
    labels = [label for _, label in launched[case.ranks].trace(case)]
    assert not any("HorovodAllgather" in label for label in labels)
    calls = [label for label in labels if " = PyFunc(" in label]
    # Under hybrid the table that no server can have is looked up in a function; three pieces are three variables.
    tables = {"function": 1}.get(case.model, 1 + case.user_parts)
    assert len(calls) == tables
    for before, call in itertools.pairwise(calls):
        name = before.partition(" = ")[0]
        assert f"^{name}" in call, "calls stand one behind the other"


def test_without_it_horovod_gathers(launched: dict[int, Launched]) -> None:
    case = next(
        case for case in MATRIX if case.comm == "mpi" and case.gradients == "sparse" and not case.use_allgatherv
    )
    labels = [label for _, label in launched[case.ranks].trace(case)]
    assert any(" = HorovodAllgather(" in label for label in labels)
    assert not any("PyFunc(" in label for label in labels)
