"""The search on times that are computed instead of measured: what is tried, what is fitted, what is chosen."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from parallax_runner.config.frozen import from_plain
from parallax_runner.errors import PlanError
from parallax_runner.plan.plan import Plan, Route, Shard, VariablePlan
from parallax_runner.search import curve_plot, record
from parallax_runner.search.candidates import MOST_TRIALS, Range, next_partitions
from parallax_runner.search.extent import PIECES_PER_SERVER, may_change, range_of
from parallax_runner.search.fit_curve import choose, curve_of
from parallax_runner.search.trial import DRIFT_SHARE, WARM_UP_STEPS, Choice, Curve, Trial

# Seconds; the lowest point is at the root of theta1 / theta2.
OPTIMA = {1: Curve(0.05, 0.001, 0.01), 8: Curve(0.05, 0.64, 0.01), 32: Curve(0.05, 1.024, 0.001)}
ALLOWED = Range(4, 1, 64)


def by(secs: Callable[[int], float]) -> Callable[[int], Trial]:
    return lambda partitions: Trial(partitions, (secs(partitions),))


def noisy(curve: Curve, seed: int, *, share: float = 0.1, steps: int = 20) -> Callable[[int], Trial]:
    """Steps vary by `share` (a standard deviation), and one in ten takes thrice as long."""
    draw = random.Random(seed)

    def measure(partitions: int) -> Trial:
        factors = (max(0.1, draw.gauss(1, share)) * draw.choice([3] + [1] * 9) for _ in range(steps))
        return Trial(partitions, tuple(curve.secs(partitions) * factor for factor in factors))

    return measure


def search(measure: Callable[[int], Trial], allowed: Range, trials: Sequence[Trial] = ()) -> Choice:
    """Measures one number of pieces after another, after those that were tried before, as the driver does."""
    made = list(trials)
    while (partitions := next_partitions(made, allowed)) is not None:
        made.append(measure(partitions))
    return choose(made)


def tried(choice: Choice) -> list[int]:
    return [trial.partitions for trial in choice.trials]


def regret(curve: Curve, choice: Choice, allowed: Range) -> float:
    """How much longer a step takes than with the best number there is, as a factor."""
    return curve.secs(choice.partitions) / min(curve.secs(number) for number in allowed.grid())


@pytest.mark.parametrize("start", [1, 2, 8, 64])
@pytest.mark.parametrize("optimum", OPTIMA)
def test_the_optimum_of_a_curve_is_found(optimum: int, start: int) -> None:
    choice = search(by(OPTIMA[optimum].secs), Range(start, 1, 256))
    assert choice.partitions == optimum
    assert choice.secs == pytest.approx(OPTIMA[optimum].secs(optimum), rel=0.02)
    assert len(choice.trials) <= 6


thetas = st.floats(0.0, 1.0)


@settings(deadline=None, max_examples=40)
@given(theta0=st.floats(0.01, 1), theta1=thetas, theta2=st.floats(0, 0.02), start=st.sampled_from([1, 2, 4, 8]))
def test_any_curve_is_searched_in_a_few_trials(theta0: float, theta1: float, theta2: float, start: int) -> None:
    curve, allowed = Curve(theta0, theta1, theta2), Range(start, 1, 64)
    choice = search(by(curve.secs), allowed)
    assert len(choice.trials) <= MOST_TRIALS == 8
    assert regret(curve, choice, allowed) <= 1.05


def test_times_of_another_form_are_searched_as_well() -> None:
    """Such as were measured on four servers: fewer connections below four pieces, and no gain from more of them."""
    measured = {1: 0.321, 2: 0.318, 4: 0.396, 8: 0.371, 16: 0.362, 32: 0.452, 64: 0.484}
    choice = search(lambda partitions: Trial(partitions, (measured[partitions],) * 20), ALLOWED)
    assert choice.partitions in (1, 2)


def test_noise_costs_little() -> None:
    """Five steps in a hundred, over curves and draws, is what may be lost at all; in the mean far less is."""
    lost = [
        regret(curve, search(noisy(curve, seed), ALLOWED), ALLOWED) for curve in OPTIMA.values() for seed in range(10)
    ]
    assert statistics.fmean(lost) < 1.01
    assert sum(each > 1.05 for each in lost) <= 1


def test_steps_that_vary_are_never_searched_in_more_than_eight_trials() -> None:
    curve = Curve(0.3, 0.2, 0.0008)
    for share in (0.01, 0.6):
        for seed in range(12):
            choice = search(noisy(curve, seed, share=share), Range(1, 1, 256))
            assert len(choice.trials) <= MOST_TRIALS


def test_the_same_times_lead_to_the_same_trials() -> None:
    curve = Curve(0.3, 0.2, 0.0008)
    assert search(noisy(curve, 1), ALLOWED) == search(noisy(curve, 1), ALLOWED)


def test_first_the_start_its_double_and_its_half_are_tried() -> None:
    """Whatever the times are: with fewer pieces than servers, the curve does not hold."""
    trials: list[Trial] = []
    for number in (4, 8, 2):
        assert next_partitions(trials, ALLOWED) == number
        trials.append(Trial(number, (0.1 * number,)))
    assert next_partitions([Trial(4, (0.3,)), Trial(8, (0.4,))], Range(4, 4, 64)) is None


def test_the_lowest_point_of_the_curve_is_tried_next() -> None:
    """The curve through the first three trials tells how far the lowest point is away."""
    for optimum, curve in ((1, Curve(0.3, 0.0, 0.05)), (32, OPTIMA[32]), (16, Curve(0.05, 2.56, 0.01))):
        trials = [Trial(number, (curve.secs(number),)) for number in (4, 8, 2)]
        assert next_partitions(trials, ALLOWED) == optimum


def test_a_search_ends_when_the_numbers_beside_the_fastest_one_were_tried() -> None:
    known = [Trial(number, (OPTIMA[8].secs(number),)) for number in (4, 8, 2)]
    assert next_partitions(known, ALLOWED) == 16
    known.append(Trial(16, (OPTIMA[8].secs(16),)))
    assert next_partitions(known, ALLOWED) is None


def test_no_more_than_eight_trials() -> None:
    trials = [Trial(number, (10.0 / number,)) for number in (1, 2, 4, 8, 16, 32, 64, 128)]
    assert next_partitions(trials[:-1], Range(1, 1, 1024)) is not None
    assert next_partitions(trials, Range(1, 1, 1024)) is None


def test_the_next_number_is_never_far_from_what_was_tried() -> None:
    choice = search(by(lambda partitions: 1 / partitions), Range(1, 1, 4096))
    for number, trial in enumerate(choice.trials[1:], start=1):
        assert trial.partitions <= 4 * max(tried(choice)[:number])
    assert choice.partitions == max(tried(choice)) > 100


@pytest.mark.parametrize(
    ("start", "least", "most", "expected"),
    [
        (1, 1, 64, [1, 2, 4, 8, 16, 32, 64]),
        (3, 1, 20, [1, 3, 6, 12, 20]),
        (4, 3, 4, [3, 4]),
        (5, 5, 5, [5]),
        (4, 1, 64, [1, 2, 4, 8, 16, 32, 64]),
    ],
)
def test_the_numbers_that_may_be_tried(start: int, least: int, most: int, expected: list[int]) -> None:
    assert Range(start, least, most).grid() == expected


def test_a_time_that_only_falls_leads_to_the_most_and_one_that_only_rises_to_the_least() -> None:
    assert search(by(lambda partitions: 1 + 1 / partitions), Range(4, 2, 40)).partitions >= 16
    assert search(by(lambda partitions: 0.1 + 1 / partitions), Range(4, 2, 40)).partitions == 40
    assert search(by(lambda partitions: 1.0 + partitions), Range(16, 2, 64)).partitions == 2


def test_a_search_goes_on_with_the_trials_it_has() -> None:
    whole = search(by(OPTIMA[8].secs), ALLOWED)
    asked: list[int] = []

    def measure(partitions: int) -> Trial:
        asked.append(partitions)
        return Trial(partitions, (OPTIMA[8].secs(partitions),))

    assert search(measure, ALLOWED, whole.trials[:2]) == whole
    assert asked == tried(whole)[2:]


def test_one_slow_first_trial_does_not_decide() -> None:
    slow = {number: OPTIMA[8].secs(number) for number in ALLOWED.grid()} | {4: 0.5}
    choice = search(by(slow.__getitem__), ALLOWED)
    assert OPTIMA[8].secs(choice.partitions) <= 1.1 * OPTIMA[8].secs(8)


def test_the_choice_is_one_that_was_tried() -> None:
    assert choose([Trial(1, (0.3,)), Trial(2, (0.2,))]).partitions == 2
    assert curve_of([Trial(1, (0.3,)), Trial(2, (0.2,))]) is None
    choice = search(by(Curve(0.01, 0.36, 0.01).secs), ALLOWED)  # lowest at 6
    assert choice.partitions in tried(choice) and choice.partitions in (4, 8)


@given(theta0=st.floats(0.001, 10), theta1=st.floats(0.001, 10), theta2=st.floats(0.001, 10), most=st.integers(3, 7))
@settings(deadline=None, max_examples=30)
def test_the_fit_recovers_the_curve(theta0: float, theta1: float, theta2: float, most: int) -> None:
    curve = Curve(theta0, theta1, theta2)
    found = curve_of([Trial(2**power, (curve.secs(2**power),)) for power in range(most + 1)])
    assert found is not None
    for power in range(most + 1):
        assert found.secs(2**power) == pytest.approx(curve.secs(2**power), rel=1e-6)


@given(st.lists(st.floats(0.001, 10), min_size=3, max_size=8))
@settings(deadline=None, max_examples=30)
def test_no_piece_is_ever_for_free(secs: list[float]) -> None:
    curve = curve_of([Trial(2**power, (one,)) for power, one in enumerate(secs)])
    assert curve is not None
    assert min(curve.theta0, curve.theta1, curve.theta2) >= 0


def test_a_trial_counts_as_much_as_it_is_sure() -> None:
    """A trial whose steps vary hardly moves the curve."""
    curve = OPTIMA[8]
    exact = [Trial(number, (curve.secs(number),) * 9) for number in (1, 2, 4, 16, 32)]
    steady = curve_of([*exact, Trial(8, (2 * curve.secs(8),) * 9)])
    varied = curve_of([*exact, Trial(8, tuple(2 * curve.secs(8) * (1 + 0.2 * step) for step in range(-4, 5)))])
    assert steady is not None and varied is not None
    assert abs(varied.secs(8) - curve.secs(8)) < abs(steady.secs(8) - curve.secs(8)) / 10


def test_a_trial_is_the_median_of_the_steps_of_the_slowest_rank() -> None:
    warm_up = [9.0] * WARM_UP_STEPS
    trial = Trial.of(4, {0: [*warm_up, 1.0, 2.0, 30.0], 1: [*warm_up, 3.0, 1.0, 5.0]})
    assert (trial.partitions, trial.step_secs) == (4, (3.0, 2.0, 30.0))
    assert trial.secs == 3.0
    assert Trial.of(1, {0: [1.0, 2.0]}).step_secs == (2.0,)


def test_a_trials_error_is_that_of_the_median_and_what_trials_drift_by() -> None:
    draw = np.random.default_rng(1)
    samples = draw.normal(1.0, 0.2, size=(2000, 25))
    medians = np.median(samples, axis=1)
    errors = [Trial(1, tuple(map(float, sample))).error_secs for sample in samples[:200]]
    assert statistics.fmean(errors) == pytest.approx(float(medians.std()), rel=0.15)
    assert Trial(1, (2.0, 2.0, 2.0)).error_secs == pytest.approx(2.0 * DRIFT_SHARE)
    # One step that takes very long does not count.
    assert Trial(1, (1.0, 1.1, 0.9, 1.0, 100.0)).error_secs < 0.2


def plan(*rows: int, servers: int = 1, gradient: str = "sparse", route: Route = Route.PS, pieces: int = 1) -> Plan:
    variables = tuple(
        VariablePlan(f"v{n}", (n, 4), "float32", 16 * n, gradient, route, (Shard(0, n, 0),) * pieces, (), None, "")
        for n in rows
    )
    return Plan("ps", 2, servers, "f", variables, ())


def test_the_search_begins_with_a_piece_a_server() -> None:
    assert range_of(plan(1000, servers=4), least=1, most=None) == Range(4, 1, 4 * PIECES_PER_SERVER)
    assert range_of(plan(1000, servers=4), least=8, most=None) == Range(8, 8, 4 * PIECES_PER_SERVER)
    assert range_of(plan(1000, servers=4), least=1, most=2) == Range(2, 1, 2)


def test_the_largest_variable_gets_no_more_pieces_than_rows() -> None:
    assert range_of(plan(50, 30), least=1, most=None) == Range(1, 1, 50)
    assert range_of(plan(50, 30), least=1, most=500) == Range(1, 1, 50)
    # A script's own partitioner wants 4 pieces of it, whatever is tried.
    assert range_of(plan(50, pieces=4), least=1, most=None) == Range(4, 4, 50)
    with pytest.raises(PlanError, match=r"partition\.max=3: the script's partitioner requests 4 pieces"):
        range_of(plan(50, pieces=4), least=1, most=3)
    with pytest.raises(PlanError, match=r"partition\.min=51: variable «v50» has 50 rows; choose at most 50"):
        range_of(plan(50, 30), least=51, most=None)


def test_there_is_nothing_to_cut_without_sparse_variables_on_servers() -> None:
    assert range_of(plan(100, gradient="dense"), least=1, most=None) is None
    assert range_of(plan(100, route=Route.ALLGATHER), least=1, most=None) is None


def test_only_a_search_with_variables_on_servers_changes_the_plan() -> None:
    searching, fixed = (from_plain({"partition": {"name": name}}) for name in ("search", "fixed"))
    assert may_change(searching, plan(100))
    assert not may_change(fixed, plan(100))
    assert not may_change(searching, plan(100, gradient="dense"))


def test_trials_and_choice_come_back_for_the_same_graph_and_cluster_only(tmp_path: Path) -> None:
    made_for = {"fingerprint": "f", "cluster": {"workers": 2, "servers": 1}}
    trials = (Trial(1, (0.1, 0.3)), Trial(8, (0.2,)))
    path = record.in_run(tmp_path)
    for choice in (Choice(8, trials, OPTIMA[8], 0.2, 0.01), Choice(8, trials, None, 0.2, 0.01), None):
        record.save(trials, choice, made_for, path)
        assert record.load(made_for, path) == record.Record(trials, choice)
        assert record.load(made_for | {"fingerprint": "g"}, path) == record.Record()
        assert record.load(made_for | {"cluster": {"workers": 3, "servers": 1}}, path) == record.Record()
    assert record.load(made_for, tmp_path / "elsewhere") == record.Record()
    path.write_text("{")
    assert record.load(made_for, path) == record.Record()


def test_what_was_searched_for_the_same_is_found_from_everywhere(tmp_path: Path) -> None:
    made_for = {"fingerprint": "f", "cluster": {"workers": 2}}
    assert record.in_cache(tmp_path, made_for) == record.in_cache(tmp_path, dict(reversed(made_for.items())))
    assert record.in_cache(tmp_path, made_for) != record.in_cache(tmp_path, made_for | {"fingerprint": "g"})


def test_the_plot_has_points_errors_curve_and_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Axes] = []
    save = Figure.savefig

    def keep(figure: Figure, file: BinaryIO, **options: object) -> None:
        drawn.append(figure.axes[0])
        save(figure, file, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    choice = search(by(OPTIMA[8].secs), ALLOWED)
    path = tmp_path / "plots" / curve_plot.FILE_NAME
    curve_plot.draw(choice.trials, choice, path)
    assert imread(path).shape[:2] == (400, 700)
    axes = drawn[0]
    (bars,) = axes.containers
    points = {round(float(x)): float(y) for x, y in bars.lines[0].get_xydata()}
    assert points == pytest.approx({number: 1000 * OPTIMA[8].secs(number) for number in tried(choice)})
    lengths = {round(float(s[0][0])): float(s[1][1] - s[0][1]) / 2 for s in bars.lines[2][0].get_segments()}
    assert lengths == pytest.approx({one.partitions: 1000 * one.error_secs for one in choice.trials})
    lines = {line.get_label(): line for line in axes.get_lines()}
    (fitted,) = [line for label, line in lines.items() if "fitted" in str(label)]
    xs, ys = fitted.get_data()
    assert choice.curve is not None
    assert len(xs) > 1
    assert all(math.isclose(y, 1000 * choice.curve.secs(x), rel_tol=1e-6) for x, y in zip(xs, ys, strict=True))
    assert set(lines["chosen: 8"].get_xdata()) == {8}
    curve_plot.draw(choice.trials[:1], None, path)  # a search that was interrupted
    assert not any("fitted" in str(line.get_label()) for line in drawn[1].get_lines())
