"""The allgather route: ranks exchange the rows that they touched."""

from parallax_runner.routes.allgather.gather import allgather_sparse_gradients
from parallax_runner.routes.rewriting import RouteRewriting

REWRITING = RouteRewriting(exchange=(allgather_sparse_gradients,))
