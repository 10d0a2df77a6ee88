"""A backend of collectives that the package does not have trains as one device does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.parallel.cases import Case
from tests.parallel.conftest import Launched, launch
from tests.parallel.test_equivalence import compared

RANKS = 2
CASES = [
    Case(comm="mpi", optimizer="adam", gradients="dense", clip=True, ranks=RANKS),
    Case(comm="mpi", optimizer="adagrad", gradients="both", ranks=RANKS),
    Case(comm="sharded", optimizer="adam", gradients="both", clip=True, ranks=RANKS),
    Case(comm="sharded", optimizer="momentum", gradients="sparse", ranks=RANKS),
    Case(comm="hybrid", optimizer="adam", gradients="both", ranks=RANKS, partitions=4),
]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def over_files(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    folder = tmp_path_factory.mktemp("over_files")
    return launch(RANKS, CASES, folder, worker_module="tests.parallel.file_backend_worker")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_one_device(case: Case, over_files: Launched) -> None:
    comparison, losses = compared(case, {RANKS: over_files})
    assert comparison.ok, (comparison.first_difference, comparison.missing, comparison.unexpected)
    by_rank = [over_files.arrays(case, "losses", rank)["losses"] for rank in range(RANKS)]
    np.testing.assert_allclose(np.mean(by_rank, axis=0), losses, rtol=1e-8)


def test_the_files_were_used_and_horovod_was_not(over_files: Launched) -> None:
    assert len(list((over_files.folder / "exchanges").iterdir())) > 100
    ops = [op for case in CASES for _, op in over_files.trace(case)]
    assert any(" = PyFunc(" in op for op in ops) and not any(" = Horovod" in op for op in ops)
