"""The ps route: variables on servers. All ranks push gradients to the servers and read variables from them."""

from parallax_runner.routes.ps.accumulate import accumulate_gradients
from parallax_runner.routes.ps.aggregate_within_worker import aggregate_within_worker
from parallax_runner.routes.ps.asynchronous import share_counters, update_at_once
from parallax_runner.routes.ps.backup_workers import update_with_backup
from parallax_runner.routes.ps.replicate_variables import replicate_dense_variables
from parallax_runner.routes.ps.shards import shard_variables
from parallax_runner.routes.ps.state import PsState
from parallax_runner.routes.ps.synchronous import update_on_servers
from parallax_runner.routes.rewriting import RouteRewriting

REWRITING = RouteRewriting(
    exchange=(aggregate_within_worker,),
    place=(shard_variables,),
    aggregate=(share_counters, update_at_once, update_with_backup, accumulate_gradients),
    update=(update_on_servers,),
    after=(replicate_dense_variables,),
    state=PsState,
)
