"""The allreduce route, for dense gradients and for sparse gradients that are made dense before they are sent."""

from parallax_runner.routes.allreduce.dense import allreduce_dense_gradients
from parallax_runner.routes.allreduce.densified import allreduce_sparse_gradients
from parallax_runner.routes.rewriting import RouteRewriting

REWRITING = RouteRewriting(exchange=(allreduce_dense_gradients, allreduce_sparse_gradients))
