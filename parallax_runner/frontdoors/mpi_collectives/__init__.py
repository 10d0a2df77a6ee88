"""A replacement for tf.contrib.mpi_collectives, for scripts that mpirun starts directly: `mpirun -np 2 python
script.py`.

Graphs use `tensorflow.compat.v1`, and can be built before MPI is initialized. Collectives on different ranks are
matched by the names of their ops, so every rank must create the same collectives in the same order.
"""

from parallax_runner.frontdoors.mpi_collectives.exchange import allgather, allreduce
from parallax_runner.frontdoors.mpi_collectives.optimizer import DistributedOptimizer
from parallax_runner.frontdoors.mpi_collectives.ranks import init, local_rank, rank, size
from parallax_runner.frontdoors.mpi_collectives.session import Session

__all__ = ["DistributedOptimizer", "Session", "allgather", "allreduce", "init", "local_rank", "rank", "size"]
