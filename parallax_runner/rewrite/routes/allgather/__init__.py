"""The allgather route: ranks exchange the rows that they touched."""

from parallax_runner.rewrite.route import RouteRewriting
from parallax_runner.rewrite.routes.allgather.gather import allgather_sparse_gradients

REWRITING = RouteRewriting(exchange=(allgather_sparse_gradients,))
