"""Exchanges through Horovod, over MPI or, without mpirun, over Gloo. Only this folder imports Horovod and knows its
environment variables."""
