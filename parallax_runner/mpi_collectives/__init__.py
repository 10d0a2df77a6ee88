"""What tf.contrib.mpi_collectives offered, for scripts that mpirun starts themselves: `mpirun -np 2 python script.py`.

Graphs are of `tensorflow.compat.v1`, and may be built before MPI is initialised. Ranks find each other's
collectives by the names of their ops, so every rank must make the same ones in the same order.
"""

from parallax_runner.mpi_collectives.exchange import allgather, allreduce
from parallax_runner.mpi_collectives.optimizer import DistributedOptimizer
from parallax_runner.mpi_collectives.ranks import init, local_rank, rank, size
from parallax_runner.mpi_collectives.session import Session

__all__ = ["DistributedOptimizer", "Session", "allgather", "allreduce", "init", "local_rank", "rank", "size"]
