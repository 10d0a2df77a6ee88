"""The alltoall route: each rank owns some rows of a variable, and ranks exchange rows with the owners."""

from parallax_runner.rewrite.route import RouteRewriting
from parallax_runner.rewrite.routes.alltoall.lookahead_request import ask_ahead
from parallax_runner.rewrite.routes.alltoall.own_rows import spread_over_ranks
from parallax_runner.rewrite.routes.alltoall.update_own_rows import update_own_rows

REWRITING = RouteRewriting(place=(spread_over_ranks,), update=(update_own_rows,), after=(ask_ahead,))
