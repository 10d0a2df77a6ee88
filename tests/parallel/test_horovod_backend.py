"""Horovod trains as one device does. The whole matrix under Horovod is slow (tests/slow.toml)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.parallel.cases import Case
from tests.parallel.conftest import Launched, launch
from tests.parallel.test_equivalence import compared

CASES = [
    Case(comm="mpi", optimizer="adam", gradients="dense", clip=True, ranks=2),
    Case(comm="mpi", optimizer="adagrad", gradients="both", ranks=2),
    Case(comm="sharded", optimizer="adam", gradients="both", clip=True, ranks=2),
    Case(comm="sharded", optimizer="momentum", gradients="sparse", ranks=2),
    Case(comm="hybrid", optimizer="adam", gradients="both", ranks=2, partitions=4),
]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def by_horovod(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    folder = tmp_path_factory.mktemp("by_horovod")
    return launch(2, CASES, folder, worker_module="tests.parallel.horovod_backend_worker")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_one_device(case: Case, by_horovod: Launched) -> None:
    comparison, losses = compared(case, {2: by_horovod})
    assert comparison.ok, (comparison.first_difference, comparison.missing, comparison.unexpected)
    by_rank = [by_horovod.arrays(case, "losses", rank)["losses"] for rank in range(2)]
    np.testing.assert_allclose(np.mean(by_rank, axis=0), losses, rtol=1e-8)
