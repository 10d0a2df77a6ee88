"""The ps route: variables on servers. All ranks push gradients to the servers and read variables from them."""

from parallax_runner.rewrite.route import RouteRewriting
from parallax_runner.rewrite.routes.ps.aggregate_within_worker import aggregate_within_worker
from parallax_runner.rewrite.routes.ps.asynchronous import share_counters, update_at_once
from parallax_runner.rewrite.routes.ps.backup_workers import update_with_backup
from parallax_runner.rewrite.routes.ps.replicate_variables import replicate_dense_variables
from parallax_runner.rewrite.routes.ps.shards import shard_variables
from parallax_runner.rewrite.routes.ps.synchronous import update_on_servers

REWRITING = RouteRewriting(
    exchange=(aggregate_within_worker,),
    place=(shard_variables,),
    update=(share_counters, update_at_once, update_with_backup, update_on_servers),
    after=(replicate_dense_variables,),
)
