"""The public name of `parallax_runner.frontdoors.mpi_collectives`."""

from parallax_runner.frontdoors.mpi_collectives import (
    DistributedOptimizer,
    Session,
    allgather,
    allreduce,
    init,
    local_rank,
    rank,
    size,
)

__all__ = ["DistributedOptimizer", "Session", "allgather", "allreduce", "init", "local_rank", "rank", "size"]
