"""The cost model: monotone where it must be, equal to hand-made sums, and cheapest routes as they should be."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_runner.analysis.variable_info import VariableInfo
from parallax_runner.plan.comm_options import CommOptions, Lookahead
from parallax_runner.plan.plan import Prediction, Route
from parallax_runner.planning import choose
from parallax_runner.planning.choose import choose_routes, possible_routes
from parallax_runner.planning.cost.constants import DEFAULTS, EXCHANGES, Constants, Exchange
from parallax_runner.planning.cost.measured import Measured, RowStatistics
from parallax_runner.planning.cost.model import Cluster, CostModel
from parallax_runner.planning.cost.sent_bytes import predict_sent_bytes
from parallax_runner.planning.cost.server_load import ServerLoad
from parallax_runner.planning.cut import Cut, cut_variables
from parallax_runner.planning.explain import explain
from tests.single.planning.test_planner import DENSE, NONE, SPARSE, info
from tests.single.planning.test_planner import plan as planned
from tests.single.plans import plan_of

BIG = info("big", "sparse", (100_000, 64), gradient_rows=1000)
ROUTES = (Route.ALLREDUCE, Route.ALLGATHER, Route.PS, Route.ALLTOALL)


def touching(alpha: float, merged: float | None = None, variable: VariableInfo = BIG, ranks: int = 2) -> Measured:
    """A measurement in which a rank touches `alpha` of the rows, and all ranks together `merged`."""
    rows = variable.shape[0]
    found = RowStatistics(
        variable.name, rows, ids=alpha * rows, distinct=alpha * rows, merged=(merged or alpha) * rows, samples=2
    )
    return Measured("f", ranks, 1, 0.1, 8, None, (variable,), (found,), "2026-01-01")


def model(
    measured: Measured | None = None,
    *,
    constants: Constants = DEFAULTS,
    lookahead: Lookahead = Lookahead.OFF,
    **cluster: int,
) -> CostModel:
    """The model of one rank a host, whose options are in effect as they are."""
    of = Cluster(**{"workers": 2, "servers": 2} | cluster)
    return CostModel(of, constants, CommOptions(lookahead=lookahead), measured)


def secs(variable: VariableInfo, route: Route, of: CostModel) -> float:
    cost = of.cost(variable, route)
    assert cost is not None
    return cost.secs


@given(st.floats(0.001, 0.4), st.floats(1.01, 2), st.sampled_from(ROUTES), st.integers(2, 16))
@settings(deadline=None)
def test_more_rows_cost_more(alpha: float, factor: float, route: Route, workers: int) -> None:
    fewer, more = (model(touching(a, ranks=workers), workers=workers) for a in (alpha, alpha * factor))
    assert secs(BIG, route, fewer) < secs(BIG, route, more)


@given(st.sampled_from(ROUTES), st.floats(0.01, 100), st.floats(1.1, 10), st.integers(2, 16))
@settings(deadline=None)
def test_faster_links_cost_less_and_latency_more(route: Route, gbit: float, factor: float, workers: int) -> None:
    def cost(gbit: float, latency_us: float) -> float:
        constants = DEFAULTS.with_link(gbit_per_sec=gbit, latency_us=latency_us)
        whole = model(touching(0.01), constants=constants, workers=workers)
        return secs(BIG, route, whole) + whole.once((BIG,), {"big": route}).secs

    assert cost(gbit * factor, 10) < cost(gbit, 10) < cost(gbit, 10 * factor)


@given(st.integers(1, 40), st.integers(1, 8))
@settings(deadline=None)
def test_more_ranks_never_make_an_exchange_cheaper(workers: int, per_host: int) -> None:
    for route in (Route.ALLREDUCE, Route.ALLGATHER, Route.PS):
        fewer, more = (
            model(touching(0.01), workers=number, workers_per_host=per_host) for number in (workers, workers + 1)
        )
        assert secs(BIG, route, fewer) <= secs(BIG, route, more) + 1e-12


def test_a_cost_is_the_sum_of_its_parts() -> None:
    """allgather of 1000 rows of 256 + 8 bytes on 4 ranks: three times round, all merged, all touched rows updated."""
    constants = dataclasses.replace(
        DEFAULTS,
        allgather=Exchange(overhead_secs=0.5, latency_secs=0.01, each_secs=0.125, secs_per_byte=2.0),
        merge_secs_per_byte=0.1,
        apply_sparse_secs_per_byte=0.3,
        apply_sparse_secs_per_row=5.0,
    )
    whole = model(touching(0.01, 0.03, ranks=4), constants=constants, workers=4)
    cost = whole.cost(BIG, Route.ALLGATHER)
    assert cost is not None
    assert cost.sent_bytes == 3 * 1000 * 264
    assert cost.link_secs == pytest.approx(2.0 * 3 * 1000 * 264)
    assert cost.latency_secs == pytest.approx(2 * 0.125)  # of values and ids
    assert whole.once((BIG,), {"big": Route.ALLGATHER}).secs == pytest.approx(0.5 + 3 * 0.01)
    assert cost.work_secs == pytest.approx(0.1 * 4 * 1000 * 264 + 3000 * (256 * 0.3 + 5))


def test_ranks_of_a_host_share_its_link() -> None:
    def link(route: Route, **cluster: int) -> float:
        cost = model(touching(0.01), **cluster).cost(BIG, route)
        assert cost is not None
        return cost.link_secs

    alone, shared = {"workers": 8, "workers_per_host": 1}, {"workers": 8, "workers_per_host": 4}
    # A ring enters each host once; rows to owners go from every rank, half of them to the other host.
    assert link(Route.ALLREDUCE, **shared) == link(Route.ALLREDUCE, **alone)
    assert link(Route.ALLTOALL, **shared) == pytest.approx(link(Route.ALLTOALL, **alone) * 4 * (4 / 8) / (7 / 8))
    assert link(Route.ALLREDUCE, workers=4, workers_per_host=4) == 0


def test_the_server_of_the_largest_dense_variable_is_as_busy_as_that_is_large() -> None:
    """Of 8 servers one has DENSE alone; if there are eight such variables each has one."""

    def link_secs(*others: VariableInfo) -> float:
        variables = (DENSE, BIG, *others)
        known = Measured("f", 8, 1, 0.1, 8, None, variables, touching(0.01).rows, "2026-01-01")
        load = ServerLoad.of(cut_variables(variables, 8, Cut.ALIKE), 8, known, DEFAULTS, together=False)
        cost = CostModel(Cluster(workers=8, servers=8), DEFAULTS, measured=known, load=load).cost(DENSE, Route.PS)
        assert cost is not None
        return cost.link_secs

    seven = [dataclasses.replace(DENSE, name=f"dense_{number}") for number in range(7)]
    assert link_secs() == pytest.approx(8 * link_secs(*seven))


def test_what_is_in_flight_together_is_waited_for_once() -> None:
    """A hundred variables on servers take a pull's and a push's overhead once, and each its own part of both."""
    constants = dataclasses.replace(
        DEFAULTS,
        pull=Exchange(overhead_secs=0.5, latency_secs=0.25, each_secs=0.01, secs_per_byte=0.0),
        push=Exchange(overhead_secs=0.75, latency_secs=0.125, each_secs=0.02, secs_per_byte=0.0),
        server_secs_per_byte=0.0,
        apply_dense_secs_per_byte=0.0,
    )
    variables = [dataclasses.replace(DENSE, name=f"dense_{number}") for number in range(100)]
    whole = model(constants=constants)
    assert whole.once((BIG,), {"big": Route.PS})[:2] == (0.5 + 2 * 0.25, 0.75 + 2 * 0.125)
    routes = dict.fromkeys((variable.name for variable in variables), Route.PS)
    assert whole.exchange_secs(variables, routes) == pytest.approx(2 + 100 * 0.03)


@pytest.mark.parametrize("route", ROUTES)
def test_rows_of_others_are_asked_for(route: Route) -> None:
    """Each distinct id of a rank costs, before the forward pass, where rows are not at hand; nothing elsewhere."""
    free, dear = (dataclasses.replace(DEFAULTS, ask_secs_per_row=secs) for secs in (0.0, 3.0))
    asked_secs = 3.0 * 1000 if route in (Route.PS, Route.ALLTOALL) else 0.0
    for lookahead in Lookahead:
        models = (model(touching(0.01, 0.015), constants=each, lookahead=lookahead) for each in (free, dear))
        (without, whole) = (cost for each in models if (cost := each.cost(BIG, route)) is not None)
        assert whole.work_secs - without.work_secs == pytest.approx(asked_secs)
        is_aside = route == Route.ALLTOALL and lookahead is not Lookahead.OFF
        assert whole.aside_secs - without.aside_secs == pytest.approx(asked_secs if is_aside else 0.0)
        assert whole.before_secs - without.before_secs == pytest.approx(0.0 if is_aside else asked_secs)


def test_each_shard_travels_for_itself() -> None:
    load = ServerLoad.of(cut_variables([BIG], 4, Cut.ALIKE), 2, None, DEFAULTS, together=False)
    constants = dataclasses.replace(
        DEFAULTS,
        pull=Exchange(overhead_secs=0.0, latency_secs=0.0, each_secs=1.0, secs_per_byte=0.0),
        push=Exchange(overhead_secs=0.0, latency_secs=0.0, each_secs=2.0, secs_per_byte=0.0),
    )
    cost = dataclasses.replace(model(touching(0.01), constants=constants), load=load).cost(BIG, Route.PS)
    assert cost is not None
    assert cost.latency_secs == 4 * 3


def test_predicted_bytes_are_the_traffics_with_measured_rows() -> None:
    options = CommOptions()
    measured = touching(0.005)
    assert predict_sent_bytes(BIG, Route.ALLTOALL, 2, options) == 1000 * (2 * 256 + 4 + 1) // 2
    assert predict_sent_bytes(BIG, Route.ALLTOALL, 2, options, measured) == 500 * (2 * 256 + 4 + 1) // 2
    assert predict_sent_bytes(BIG, Route.PS, 2, options, measured) == 2 * 500 * 264
    for route in ROUTES:
        cost = model(measured, lookahead=options.lookahead).cost(BIG, route)
        assert cost is not None
        assert cost.sent_bytes == predict_sent_bytes(BIG, route, 2, options, measured)
    # A dense exchange carries a number for each row beside it.
    assert predict_sent_bytes(BIG, Route.ALLREDUCE, 2, options) == 100_000 * (256 + 4)


def chosen(*variables: VariableInfo, **options: object) -> dict[str, str]:
    found = choose_routes(variables, model(**options))  # type: ignore[arg-type]
    assert set(found.reasons) == {variable.name for variable in variables}
    return {name: route for name, route in found.routes.items()}


def test_few_rows_go_to_owners_and_nearly_all_rows_go_dense() -> None:
    slow = DEFAULTS.with_link(gbit_per_sec=0.2, latency_us=50)
    few = chosen(DENSE, BIG, NONE, measured=touching(0.01, ranks=8), constants=slow, workers=8)
    assert few == {"kernel": "allreduce", "big": "alltoall", "global_step": "local"}
    small = info("small", "sparse", (1000, 64))
    measured = touching(0.98, variable=small, ranks=8)
    all_rows = chosen(DENSE, small, NONE, measured=measured, constants=slow, workers=8)
    assert all_rows == {"kernel": "allreduce", "small": "allreduce", "global_step": "local"}
    # Of a large table, owners among the ranks would move hardly less; without dense variables too.
    large = {"measured": touching(0.98, ranks=8), "constants": slow, "workers": 8}
    whole = model(**large)  # type: ignore[arg-type]
    assert secs(BIG, Route.ALLTOALL, whole) < secs(BIG, Route.ALLREDUCE, whole) < 1.1 * secs(BIG, Route.ALLTOALL, whole)
    assert chosen(DENSE, BIG, **large) == {"kernel": "allreduce", "big": "allreduce"}
    assert chosen(BIG, **large) == {"big": "allreduce"}
    large["measured"] = touching(0.8, ranks=8)
    assert chosen(BIG, **large) == {"big": "alltoall"}


def test_nearly_all_rows_go_dense_unless_a_step_takes_noticeably_longer() -> None:
    """Owners update a part of the rows each. That wins where links are so quick, and ranks so many, that it decides."""
    quick = DEFAULTS.with_link(gbit_per_sec=100, latency_us=5)
    whole = model(touching(0.98, ranks=8), constants=quick, workers=8)
    slower_secs = secs(BIG, Route.ALLREDUCE, whole) - secs(BIG, Route.ALLTOALL, whole)
    both = (BIG, dataclasses.replace(BIG, name="other"))
    measured = touching(0.98, ranks=8)
    rows = tuple(dataclasses.replace(measured.rows[0], name=variable.name) for variable in both)
    for step_secs, dense in ((4 * slower_secs, 0), (12 * slower_secs, 1), (30 * slower_secs, 2)):
        known = dataclasses.replace(measured, step_secs=step_secs, variables=both, rows=rows)
        choice = choose_routes(both, model(known, constants=quick, workers=8))
        goes_dense = [number < dense for number in range(2)]
        assert [choice.routes[variable.name] == Route.ALLREDUCE for variable in both] == goes_dense
        assert [
            "so the dense route is hardly slower" in choice.reasons[variable.name] for variable in both
        ] == goes_dense


def test_bounds_do_not_send_a_table_dense() -> None:
    slow = DEFAULTS.with_link(gbit_per_sec=0.2, latency_us=50)
    everything = dataclasses.replace(BIG, gradient_rows=BIG.shape[0])
    assert chosen(everything, constants=slow, workers=8)["big"] in ("ps", "alltoall")


def test_what_goes_dense_for_costing_alike_must_be_possible() -> None:
    slow = DEFAULTS.with_link(gbit_per_sec=0.2, latency_us=50)
    large = {"measured": touching(0.98, ranks=8), "constants": slow, "workers": 8}
    fixed = dataclasses.replace(BIG, server=1)
    assert chosen(fixed, **large) == {"big": "ps"}
    assert chosen(BIG, dataclasses.replace(NONE, dtype="complex64"), **large)["big"] == "ps"
    # Nor is an allreduce started for it that costs more than it is worth.
    dear = dataclasses.replace(slow, allreduce=dataclasses.replace(slow.allreduce, overhead_secs=10.0))
    assert chosen(BIG, **(large | {"constants": dear})) == {"big": "alltoall"}


def test_servers_win_where_exchanges_among_ranks_are_slow() -> None:
    stalled = Exchange(overhead_secs=1.0, latency_secs=1.0, each_secs=0.0, secs_per_byte=1e-6)
    slow = dataclasses.replace(DEFAULTS, allreduce=stalled, allgather=stalled, alltoall=stalled)
    assert set(chosen(DENSE, BIG, measured=touching(0.01), constants=slow).values()) == {"ps"}
    assert "ps" not in chosen(DENSE, BIG, measured=touching(0.01), constants=slow, servers=0).values()


@given(
    st.floats(0.001, 1.0),
    st.sampled_from([0.01, 0.1, 1, 10, 100]),
    st.floats(0, 1e-2),
    st.floats(0, 1e-2),
    st.integers(2, 16),
    st.sampled_from(Lookahead),
)
@settings(deadline=None)
def test_a_plan_has_one_kind_of_owner_and_no_preset_beats_it(
    alpha: float, gbit: float, server_overhead: float, overhead: float, workers: int, lookahead: Lookahead
) -> None:
    """By the predicted step, and without lookahead by the sum of all costs too."""
    linked = DEFAULTS.with_link(gbit_per_sec=gbit, latency_us=20)
    overheads = {name: server_overhead if name in ("pull", "push") else overhead for name in EXCHANGES}
    constants = dataclasses.replace(
        linked,
        **{n: dataclasses.replace(getattr(linked, n), overhead_secs=secs) for n, secs in overheads.items()},
    )
    variables = (DENSE, BIG, info("unmeasured", "sparse", (500, 8)), NONE)
    whole = model(touching(alpha, ranks=workers), constants=constants, workers=workers, lookahead=lookahead)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "NEARLY_ALL", 2.0)
        cheapest = choose_routes(variables, whole).routes
    routes = choose_routes(variables, whole).routes
    measures = (whole.step_secs, whole.exchange_secs) if lookahead is Lookahead.OFF else (whole.step_secs,)
    step_secs = whole.step_secs(variables, cheapest)
    assert step_secs is not None
    for secs_of in measures:
        best, taken = (secs_of(variables, each) for each in (cheapest, routes))
        assert best is not None and taken is not None
        assert taken <= best + choose.ALIKE * step_secs + 1e-12
    assert routes == cheapest or alpha >= choose.NEARLY_ALL
    for each in (cheapest, routes):
        assert not {Route.PS, Route.ALLTOALL} <= set(each.values())
    for comm in ("mpi", "ps", "hybrid", "sharded"):
        preset = plan_of(variables, comm=comm, workers=workers)
        for secs_of in measures:
            best, total = secs_of(variables, cheapest), secs_of(variables, {v.name: v.route for v in preset.variables})
            assert best is not None and total is not None
            assert best <= total + 1e-12


def test_what_cannot_move_stays_with_the_ranks() -> None:
    fixed = dataclasses.replace(BIG, immovable_op="inside/Gather")
    assert possible_routes(fixed, 2) == (Route.ALLREDUCE, Route.ALLGATHER)
    assert chosen(fixed, measured=touching(0.01, variable=fixed))["big"] in ("allreduce", "allgather")


def test_a_scope_that_names_a_server_is_heeded() -> None:
    named = info("named", "dense", server=1)
    assert chosen(named, BIG, measured=touching(0.01))["named"] == "ps"
    assert chosen(named, BIG, measured=touching(0.01), servers=0)["named"] == "allreduce"


def test_unknown_numbers_of_rows_go_to_the_owner() -> None:
    unknown = info("unknown", "sparse", (1_000_000, 8), gradient_rows=None)
    routes = choose_routes((DENSE, unknown), model())
    assert routes.routes["unknown"] in (Route.PS, Route.ALLTOALL)
    assert "unknown number of rows" in routes.reasons["unknown"]


def test_explained_plans_have_every_route_and_a_prediction() -> None:
    measured, variables = touching(0.01), (DENSE, BIG, NONE)
    whole = model(measured)
    choice = choose_routes(variables, whole)
    plan = explain(planned(*variables, comm="auto", choice=choice), variables, whole)
    kernel, big, step = plan.variables
    assert {cost.route for cost in big.costs} == set(ROUTES)
    assert {cost.route for cost in kernel.costs} == {Route.ALLREDUCE, Route.PS}
    assert big.alpha == pytest.approx(0.01)
    assert (kernel.alpha, step.alpha) == (None, None)
    assert "1 % of the rows" in big.reason
    assert plan.rows_measured == measured.made
    assert plan.predicted.step_ms == pytest.approx(1000 * (whole.step_secs(variables, choice.routes) or 0))
    assert plan.predicted.exchange_ms == pytest.approx(
        sum(1000 * cost.secs for v in plan.variables for cost in v.costs if cost.route == v.route)
        + (plan.predicted.shared_ms or 0)
    )
    assert any("auto" in note for note in plan.notes)


def test_without_a_measurement_there_are_bounds_and_no_time_of_computing() -> None:
    plan = explain(planned(DENSE, SPARSE), (DENSE, SPARSE), model())
    assert not plan.rows_measured
    assert plan.variables[1].alpha == 1.0  # 50 ids on each of 2 ranks, 100 rows
    assert plan.predicted.step_ms is plan.predicted.compute_ms is None
    assert plan.predicted.exchange_ms is not None


def test_auto_leaves_to_servers_what_ranks_cannot_send() -> None:
    """All, where a variable without a gradient would be sent as it is at first."""
    odd, short = info("counter", "none", (), dtype="complex64"), info("short", "dense", dtype="bfloat16")
    fast = dataclasses.replace(DEFAULTS, allreduce=Exchange(0.0, 0.0, 0.0, 0.0))
    every = choose_routes((DENSE, short), model(touching(0.01), constants=fast)).routes
    assert every == {"kernel": Route.ALLREDUCE, "short": Route.ALLREDUCE}
    every = choose_routes((DENSE, short, odd), model(touching(0.01), constants=fast)).routes
    assert every == {"kernel": Route.PS, "short": Route.PS, "counter": Route.LOCAL}


def test_a_graph_without_variables_has_an_empty_choice() -> None:
    assert choose_routes((), model()).routes == {}


@pytest.mark.parametrize("options", [{"sync": False}, {"backup_workers": 1}, {"replicas_per_worker": 2}])
def test_of_plans_that_the_model_does_not_know_nothing_is_predicted(options: dict[str, Any]) -> None:
    explained = explain(planned(DENSE, BIG, comm="ps", **options), (DENSE, BIG), model(touching(0.01)))
    assert explained.predicted == Prediction()
    assert not any(variable.costs for variable in explained.variables)
    assert "not predicted" in explained.notes[-1]
    # Bytes are known even so: 1000 rows of 256 bytes, asked for, pulled and pushed.
    assert explained.rows_measured
    assert explained.variables[1].sent_bytes_per_step == 1000 * (8 + 256 + 264)


def test_a_table_without_rows_is_touched_nowhere() -> None:
    empty = info("empty", "sparse", (0, 4), gradient_rows=3)
    assert explain(planned(empty, comm="mpi", servers=0), (empty,), model(servers=0)).variables[0].alpha == 0.0
    assert "0 % of the rows" in choose_routes((empty,), model(servers=0)).reasons["empty"]


def test_computing_is_the_measured_step_without_its_updates() -> None:
    constants = dataclasses.replace(DEFAULTS, apply_sparse_secs_per_byte=0.0, apply_sparse_secs_per_row=1e-5)
    assert model(touching(0.01), constants=constants).compute_secs() == pytest.approx(0.1 - 1000 * 1e-5)
