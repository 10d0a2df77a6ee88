"""mpi_collectives in a process whose Horovod would use Gloo. A whole run is in tests/integration/test_manual.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner import mpi_collectives
from parallax_runner.collectives import ops as collectives


def open_session() -> None:
    mpi_collectives.Session()


def run_init() -> None:
    with tf.Graph().as_default():
        op = mpi_collectives.init()
        with tf.Session() as session:
            session.run(op)


@pytest.mark.parametrize("variable", ["HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"])
@pytest.mark.parametrize("join", [open_session, run_init])
def test_it_is_refused(join: Callable[[], None], variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "GLOO")
    monkeypatch.setattr(collectives, "join", lambda: pytest.fail("it has joined the ranks all the same"))
    with pytest.raises(Exception, match=f"mpi_collectives needs MPI, but {variable}=gloo connects the ranks"):
        join()
