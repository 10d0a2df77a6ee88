"""Determines which numbers of pieces can be tried with a plan."""

from __future__ import annotations

from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import PlanError, Setting
from parallax_runner.plan.plan import Plan, VariablePlan
from parallax_runner.routes.traits import traits_of_route
from parallax_runner.search.candidates import Range

# The default upper bound. Pieces are processed in parallel, and few servers have more cores than this.
PIECES_PER_SERVER = 64


def may_change(config: RunConfig, plan: Plan) -> bool:
    """Returns whether the number of pieces can change while a run's processes are running.

    A search is possible only if all ranks wait for each other in each step, because then no rank uses a variable
    between two steps (config/rules/partition.py).
    """
    return config.partition.name == "search" and bool(_cut(plan))


def range_of(plan: Plan, *, least: int, most: int | None) -> Range | None:
    """Returns the numbers of pieces between `least` and `most` for a plan's sparse variables on servers.

    Returns None if there are no such variables. The range starts with one piece per server, which is the smallest
    number that uses all servers (as in the original Parallax, with one server per host).

    The numbers apply to the largest variable, and smaller variables get fewer pieces. `plan` is made for one piece. If
    the plan has more pieces, a script's own partitioner requested them, and smaller numbers are not tried. Raises
    PlanError if the largest variable has fewer than `least` rows, or if the script requests more than `most` pieces.
    """
    cut = _cut(plan)
    if not cut:
        return None
    largest = max(cut, key=lambda variable: variable.size_bytes)
    rows = largest.shape[0]
    wanted = max(len(variable.shards) for variable in cut)
    if most is not None and wanted > most:
        raise PlanError(f"the script's partitioner requests {wanted} pieces").about(
            Setting.of("partition.max", most), remedy=f"choose at least {wanted}"
        )
    least = max(least, wanted)
    if least > rows:
        raise PlanError(f"variable «{largest.name}» has {rows} rows").about(
            Setting.of("partition.min", least), remedy=f"choose at most {rows}"
        )
    bound = max(least, PIECES_PER_SERVER * plan.servers) if most is None else most
    bound = min(bound, rows)
    return Range(start=min(max(least, plan.servers), bound), least=least, most=bound)


def _cut(plan: Plan) -> list[VariablePlan]:
    sparse = (variable for variable in plan.variables if variable.gradient == "sparse")
    return [variable for variable in sparse if traits_of_route(variable.route).on_servers]
