"""Names the backends, and the one of this process."""

from __future__ import annotations

import re

from parallax_runner.collectives.backend import Backend
from parallax_runner.collectives.horovod.backend import Horovod
from parallax_runner.collectives.native.backend import Native

# In the order in which comm.backend=auto tries them (driver/exchange_backend.py).
BACKENDS: dict[str, Backend] = {"native": Native(), "horovod": Horovod()}
DEFAULT = "native"
# Until a plan names another one. Scripts that mpirun starts (frontdoors/mpi_collectives) have no plan.
WITHOUT_PLAN = "horovod"
_chosen: list[Backend] = [BACKENDS[WITHOUT_PLAN]]


def backend() -> Backend:
    """Returns the backend through which the ranks of this process's run exchange tensors."""
    return _chosen[-1]


def is_exchange(op_type: str) -> bool:
    """Returns whether an op of this type is an exchange of the backend."""
    return re.fullmatch(backend().op_types, op_type) is not None


def choose(other: Backend) -> None:
    """Makes the ops that are built from now on exchange tensors through another backend."""
    _chosen[:] = [other]
