"""The search on times that are computed instead of measured: what is tried, what is fitted, what is chosen."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from parallax_runner.errors import PlanError
from parallax_runner.plan.plan import Plan, Route, Shard, VariablePlan
from parallax_runner.search import plot, record
from parallax_runner.search.candidates import Range
from parallax_runner.search.extent import PIECES_PER_SERVER, range_of
from parallax_runner.search.fit import choose, fit
from parallax_runner.search.search import search
from parallax_runner.search.trial import Choice, Curve, Trial

# Seconds; the lowest point is at the root of theta1 / theta2.
OPTIMA = {1: Curve(0.05, 0.001, 0.01), 8: Curve(0.05, 0.64, 0.01), 32: Curve(0.05, 1.024, 0.001)}


def by(secs: Callable[[int], float]) -> Callable[[int], Trial]:
    return lambda partitions: Trial(partitions, (secs(partitions),))


def candidates(choice: Choice) -> list[int]:
    return [trial.partitions for trial in choice.trials]


def tried(secs: Callable[[int], float], start: int = 1, least: int = 1, most: int = 64) -> list[int]:
    return candidates(search(by(secs), Range(start, least, most)))


@pytest.mark.parametrize("start", [1, 2, 8, 64])
@pytest.mark.parametrize("optimum", OPTIMA)
def test_the_optimum_of_a_curve_is_found(optimum: int, start: int) -> None:
    choice = search(by(OPTIMA[optimum].secs), Range(start, 1, 256))
    assert choice.partitions == optimum
    assert choice.curve is not None
    assert choice.secs == pytest.approx(OPTIMA[optimum].secs(optimum))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("optimum", OPTIMA)
def test_noise_costs_little(optimum: int, seed: int) -> None:
    """Each of 50 steps is up to a tenth longer or shorter, and one in ten takes thrice as long."""
    draw, curve = random.Random(seed), OPTIMA[optimum]

    def measure(partitions: int) -> Trial:
        steps = (draw.uniform(0.9, 1.1) * draw.choice([3] + [1] * 9) for _ in range(50))
        return Trial(partitions, tuple(curve.secs(partitions) * step for step in steps))

    choice = search(measure, Range(1, 1, 256))
    assert curve.secs(choice.partitions) <= 1.05 * curve.secs(optimum)


def test_doubling_ends_where_the_time_rises() -> None:
    assert tried(OPTIMA[8].secs) == [1, 2, 4, 8, 16]


def test_halving_begins_at_the_start_again() -> None:
    assert tried(OPTIMA[8].secs, start=32) == [32, 64, 16, 8, 4]
    assert tried(OPTIMA[8].secs, start=8) == [8, 16, 4]


@pytest.mark.parametrize(
    ("start", "least", "most", "expected"),
    [(1, 1, 64, [1, 2, 4, 8, 16, 32, 64]), (3, 1, 20, [3, 6, 12, 20, 1]), (4, 3, 4, [4, 3]), (5, 5, 5, [5])],
)
def test_the_bounds_themselves_are_tried(start: int, least: int, most: int, expected: list[int]) -> None:
    assert tried(lambda partitions: 1 / partitions, start, least, most) == expected


def test_a_time_that_only_falls_leads_to_the_most_and_one_that_only_rises_to_the_least() -> None:
    assert search(by(lambda partitions: 1 + 1 / partitions), Range(4, 2, 40)).partitions == 40
    assert search(by(lambda partitions: 1.0 + partitions), Range(16, 2, 64)).partitions == 2


def test_a_flat_time_leaves_variables_whole() -> None:
    assert search(by(lambda _: 0.25), Range(1, 1, 64)).partitions == 1


def test_one_fast_or_slow_first_trial_does_not_end_the_search() -> None:
    secs = {1: 0.1} | {number: OPTIMA[8].secs(number) for number in (2, 4, 8, 16)}
    assert tried(secs.__getitem__) == [1, 2, 4, 8, 16]
    slow = {1: 20.0} | {number: OPTIMA[8].secs(number) for number in (2, 4, 8, 16)}
    choice = search(by(slow.__getitem__), Range(1, 1, 64))
    assert OPTIMA[8].secs(choice.partitions) <= 1.1 * OPTIMA[8].secs(8)


def test_the_choice_need_not_have_been_tried_and_stays_among_those_between() -> None:
    curve = Curve(0.01, 0.36, 0.01)  # lowest at 6
    assert search(by(curve.secs), Range(1, 1, 64)).partitions == 6
    assert search(by(curve.secs), Range(1, 1, 4)).partitions == 4


def test_two_points_are_no_curve() -> None:
    choice = choose([Trial(1, (0.3,)), Trial(2, (0.2,))])
    assert (choice.partitions, choice.curve, choice.secs) == (2, None, 0.2)
    assert choose([Trial(4, (0.2,)), Trial(2, (0.2,))]).partitions == 2


thetas = st.floats(0.001, 10)


@given(theta0=thetas, theta1=thetas, theta2=thetas, most=st.integers(2, 7))
def test_the_fit_recovers_the_curve(theta0: float, theta1: float, theta2: float, most: int) -> None:
    curve = Curve(theta0, theta1, theta2)
    found = fit([Trial(2**power, (curve.secs(2**power),)) for power in range(most + 1)])
    assert found is not None
    for number in (1, 2**most):
        assert found.secs(number) == pytest.approx(curve.secs(number), rel=1e-6)
    assert (found.theta0, found.theta1, found.theta2) == pytest.approx((theta0, theta1, theta2), rel=1e-2, abs=1e-4)


@given(st.lists(st.floats(0.001, 10), min_size=3, max_size=8))
def test_no_piece_is_ever_for_free(secs: list[float]) -> None:
    found = fit([Trial(2**power, (one,)) for power, one in enumerate(secs)])
    assert found is not None
    assert found.theta1 >= 0 and found.theta2 >= 0


def test_a_trial_is_the_median_of_the_later_steps_over_all_ranks() -> None:
    trial = Trial.of(4, {0: [9.0, 9.0, 1.0, 2.0, 30.0], 1: [9.0, 9.0, 3.0, 4.0, 50.0]})
    assert (trial.partitions, trial.step_secs) == (4, (2.0, 3.0, 40.0))
    assert trial.secs == 3.0


def plan(*rows: int, servers: int = 1, gradient: str = "sparse", route: Route = Route.PS) -> Plan:
    variables = tuple(
        VariablePlan(f"v{n}", (n, 4), "float32", 16 * n, gradient, route, (Shard(0, n, 0),), (), None, "") for n in rows
    )
    return Plan("hybrid", 2, servers, True, "f", variables, ())


def test_the_search_begins_with_a_piece_a_server() -> None:
    assert range_of(plan(1000, servers=4), least=1, most=None) == Range(4, 1, 4 * PIECES_PER_SERVER)
    assert range_of(plan(1000, servers=4), least=8, most=None) == Range(8, 8, 4 * PIECES_PER_SERVER)
    assert range_of(plan(1000, servers=4), least=1, most=2) == Range(2, 1, 2)


def test_no_variable_gets_more_pieces_than_rows() -> None:
    assert range_of(plan(1000, 30), least=1, most=None) == Range(1, 1, 30)
    assert range_of(plan(1000, 30), least=1, most=500) == Range(1, 1, 30)
    with pytest.raises(PlanError, match=r"partition\.min=31: variable «v30» has 30 rows; choose at most 30"):
        range_of(plan(1000, 30), least=31, most=None)


def test_there_is_nothing_to_cut_without_sparse_variables_on_servers() -> None:
    assert range_of(plan(100, gradient="dense"), least=1, most=None) is None
    assert range_of(plan(100, route=Route.ALLGATHER), least=1, most=None) is None


def test_a_choice_comes_back_for_the_same_graph_and_cluster_only(tmp_path: Path) -> None:
    made_for = {"fingerprint": "f", "cluster": {"workers": 2, "servers": 1}}
    for curve in (OPTIMA[8], None):
        choice = Choice(8, (Trial(1, (0.1, 0.3)), Trial(8, (0.2,))), curve)
        record.save(choice, made_for, tmp_path)
        assert record.load(made_for, tmp_path) == choice
        assert record.load(made_for | {"fingerprint": "g"}, tmp_path) is None
        assert record.load(made_for | {"cluster": {"workers": 3, "servers": 1}}, tmp_path) is None
    assert record.load(made_for, tmp_path / "elsewhere") is None
    (tmp_path / record.FOLDER / record.FILE_NAME).write_text("{")
    assert record.load(made_for, tmp_path) is None


def test_the_plot_has_points_curve_and_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Axes] = []
    save = Figure.savefig

    def keep(figure: Figure, path: Path, **options: object) -> None:
        drawn.append(figure.axes[0])
        save(figure, path, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    choice = search(by(OPTIMA[8].secs), Range(32, 1, 64))
    path = tmp_path / "plots" / plot.FILE_NAME
    plot.draw(choice.trials, choice, path)
    assert imread(path).shape[:2] == (400, 700)
    points, curve, chosen = drawn[0].get_lines()
    measured = {number: 1000 * OPTIMA[8].secs(number) for number in (4, 8, 16, 32, 64)}
    assert dict(map(tuple, points.get_xydata())) == pytest.approx(measured)
    xs, ys = curve.get_data()
    assert (xs[0], xs[-1]) == pytest.approx((4, 64))
    assert all(math.isclose(y, 1000 * OPTIMA[8].secs(x), rel_tol=1e-6) for x, y in zip(xs, ys, strict=True))
    assert set(chosen.get_xdata()) == {8}
    plot.draw(choice.trials[:1], None, path)  # a search that was interrupted
    assert len(drawn[1].get_lines()) == 1
