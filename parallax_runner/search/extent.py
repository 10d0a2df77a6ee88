"""Which numbers of pieces can be tried with a plan."""

from __future__ import annotations

from parallax_runner.config.frozen import SCRIPT
from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import PlanError
from parallax_runner.plan.plan import Plan, Route, VariablePlan
from parallax_runner.search.candidates import Range

# Where no bound is given. Pieces are there to be worked on side by side, and few servers have more cores.
PIECES_PER_SERVER = 64


def may_change(config: RunConfig, plan: Plan) -> bool:
    """Whether a run's number of pieces may change while its processes live: where all steps are of all ranks, so that
    between two of them nobody uses a variable, and where the loop of steps is our own, not a script's."""
    return (
        config.partition.name == "search"
        and config.action in ("train", "search")
        and config.model["_target_"] != SCRIPT
        and plan.options.waits_for_all
        and bool(_cut(plan))
    )


def range_of(plan: Plan, *, least: int, most: int | None) -> Range | None:
    """The numbers between `least` and `most` for the sparse variables that a plan has on servers, none if there are
    none. It begins with a piece a server, the fewest that let all servers work (the original's one server a host).

    The number is the largest variable's; smaller ones get fewer. Numbers below the pieces that `plan`, made for one,
    has are not tried: a script's own partitioner wants them. Raises PlanError where the largest has fewer than `least`
    rows, and where the script wants more than `most`.
    """
    cut = _cut(plan)
    if not cut:
        return None
    largest = max(cut, key=lambda variable: variable.size_bytes)
    rows = largest.shape[0]
    wanted = max(len(variable.shards) for variable in cut)
    if most is not None and wanted > most:
        raise PlanError(
            f"partition.max={most}: the script's partitioner wants at least {wanted} pieces; choose at least {wanted}"
        )
    least = max(least, wanted)
    if least > rows:
        raise PlanError(f"partition.min={least}: variable «{largest.name}» has {rows} rows; choose at most {rows}")
    bound = max(least, PIECES_PER_SERVER * plan.servers) if most is None else most
    bound = min(bound, rows)
    return Range(start=min(max(least, plan.servers), bound), least=least, most=bound)


def _cut(plan: Plan) -> list[VariablePlan]:
    return [variable for variable in plan.by_route(Route.PS) if variable.gradient == "sparse"]
