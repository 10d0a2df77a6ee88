"""The alltoall route: each rank owns some rows of a variable, and ranks exchange rows with the owners."""

from parallax_runner.routes.alltoall.grow import ask_for_rows_of_keys
from parallax_runner.routes.alltoall.lookahead_request import ask_ahead
from parallax_runner.routes.alltoall.own_rows import spread_over_ranks
from parallax_runner.routes.alltoall.state import AlltoallState
from parallax_runner.routes.alltoall.update_own_rows import send_to_owners, update_own_rows
from parallax_runner.routes.rewriting import RouteRewriting

REWRITING = RouteRewriting(
    place=(ask_for_rows_of_keys, spread_over_ranks),
    aggregate=(send_to_owners,),
    update=(update_own_rows,),
    after=(ask_ahead,),
    state=AlltoallState,
)
