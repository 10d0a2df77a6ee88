"""The route allreduce: dense gradients, and sparse ones that are made dense on the way."""

from parallax_runner.rewrite.route import RouteRewriting
from parallax_runner.rewrite.routes.allreduce.dense import allreduce_dense_gradients
from parallax_runner.rewrite.routes.allreduce.densified import allreduce_sparse_gradients

REWRITING = RouteRewriting(exchange=(allreduce_dense_gradients, allreduce_sparse_gradients))
