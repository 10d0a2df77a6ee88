"""Pass: make the updates of placed variables run where their rows are, on servers and on the ranks."""

from __future__ import annotations

from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.rewrite.update_region.sharded_update import ShardedUpdate


@rewrite_pass(reads=["aggregates", "placements"], writes=["update", "sent", "stands_for", "row_orders"])
def update_placed_variables(rewrite: Rewrite) -> None:
    """Visits the update region once for the variables of all routes, because the update of one variable may read values
    of another, as a norm over all gradients does.

    All ranks create the same ops, under the same names.
    """
    if not rewrite.aggregates:
        return
    rewrite.update = ShardedUpdate(rewrite=rewrite, values=dict(rewrite.aggregates))
    rewrite.update.visit_region()
    rewrite.update.visit_observers()
