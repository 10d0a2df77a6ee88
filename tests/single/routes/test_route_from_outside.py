"""A route that another package brings: it is found by its module's name, and general code asks it."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType

import pytest

from parallax_runner.errors import PlanError
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.passes import all_passes, rewrite_for_rank
from parallax_runner.rewrite.rewrite_pass import PassOrderError, rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.routes import traits as registry
from parallax_runner.routes.registry import route_named
from parallax_runner.routes.rewriting import RouteRewriting, needs_all_ranks, shared_variables
from tests.single.small_models import captured, planned

ROUTE = "halves"


@rewrite_pass(writes=["gradients", "replaced"])
def halve(rewrite: Rewrite) -> None:
    for gradient in rewrite.gradients_by(ROUTE):
        rewrite.replace_gradient(gradient, gradient.values / 2, gradient.indices)


@rewrite_pass(reads=["placements"])
def too_early(rewrite: Rewrite) -> None:
    pass


@dataclasses.dataclass
class HalvesState:
    halved: int = 0


@rewrite_pass(reads=["gradients"], writes=["HalvesState.halved"])
def count_halved(rewrite: Rewrite) -> None:
    rewrite.of_route(HalvesState).halved += len(rewrite.gradients_by(ROUTE))


@rewrite_pass(reads=["HalvesState.halved"])
def check_halved(rewrite: Rewrite) -> None:
    assert rewrite.of_route(HalvesState).halved == len(rewrite.gradients_by(ROUTE)) > 0


def brought(monkeypatch: pytest.MonkeyPatch, rewriting: object, **traits: bool) -> None:
    """Adds a route to those that are known, as an entry point does."""

    class Halves(type(route_named("allreduce"))):  # type: ignore[misc]
        name = ROUTE
        rewriting = "package_outside.rewriting"

    for trait, value in traits.items():
        setattr(Halves, trait, value)
    planning, module = ModuleType("package_outside.planning"), ModuleType(Halves.rewriting)
    planning.ROUTE = Halves()  # type: ignore[attr-defined]
    module.REWRITING = rewriting  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, planning.__name__, planning)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    known = {**registry._modules(), ROUTE: planning.__name__}
    monkeypatch.setattr(registry, "_modules", lambda: known)
    registry._loaded.cache_clear()


def planned_by_it() -> tuple[SingleDeviceGraph, Plan]:
    single = captured()
    plan = planned(single, "local")
    variables = tuple(dataclasses.replace(one, route=ROUTE) for one in plan.variables if one.gradient != "none")
    return single, dataclasses.replace(plan, variables=variables)


def test_its_passes_run_with_their_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    brought(monkeypatch, RouteRewriting(exchange=(halve,)))
    names = [one.name for one in all_passes()]
    assert names.index("aggregate_within_worker") + 1 == names.index("halve") < names.index("shard_variables")
    single, plan = planned_by_it()
    graph = rewrite_for_rank(single, plan, rank=0, seed=1).graph
    divided = [op.name for op in graph.get_operations() if op.type == "RealDiv" and op.name.startswith("truediv")]
    assert len(divided) == 2  # «table» and «weights»


def test_it_says_what_its_variables_are_to_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    _, plan = planned_by_it()
    brought(monkeypatch, RouteRewriting())
    assert not needs_all_ranks(plan) and shared_variables(plan) == set()
    brought(monkeypatch, RouteRewriting(), on_servers=True, needs_all_ranks=True)
    assert needs_all_ranks(plan)
    assert shared_variables(plan) == {"table", "weights", "table/Adagrad", "weights/Adagrad"}


def test_its_passes_are_checked_with_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    brought(monkeypatch, RouteRewriting(exchange=(too_early,)))
    with pytest.raises(PassOrderError, match="pass too_early reads placements, which no earlier pass writes"):
        all_passes()


def test_its_passes_share_a_state_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    brought(monkeypatch, RouteRewriting(exchange=(count_halved,), after=(check_halved,), state=HalvesState))
    single, plan = planned_by_it()
    rewrite_for_rank(single, plan, rank=0, seed=1)


@pytest.mark.parametrize("state", [None, HalvesState])
def test_a_field_that_its_state_does_not_have_is_refused(state: type | None, monkeypatch: pytest.MonkeyPatch) -> None:
    @rewrite_pass(reads=["HalvesState.colour"])
    def paint(rewrite: Rewrite) -> None:
        pass

    brought(monkeypatch, RouteRewriting(exchange=(paint,), state=state))
    with pytest.raises(PassOrderError, match=r"pass paint declares HalvesState\.colour, expected fields of Rewrite"):
        all_passes()


def test_a_module_without_a_rewriting_half_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    brought(monkeypatch, "something else")
    message = r"package_outside.rewriting.REWRITING is 'something else', expected a RouteRewriting"
    with pytest.raises(PlanError, match=message):
        all_passes()


def test_a_route_that_nobody_knows_is_refused() -> None:
    single, plan = planned_by_it()
    with pytest.raises(PlanError, match="unknown route «halves»"):
        rewrite_for_rank(single, plan, rank=0, seed=1)
