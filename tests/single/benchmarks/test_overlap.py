"""The speed over the time in which two runs both train."""

import pytest

from benchmarks.overlap import Told, over_common_time, step_at


def steady(*, begin: float, per_sec: float, steps: int) -> list[Told]:
    """Tells of every tenth step."""
    return [Told(step, begin + step / per_sec) for step in range(0, steps + 1, 10)]


def test_rates_of_two_steady_runs() -> None:
    common = over_common_time(
        [steady(begin=0, per_sec=10, steps=100), steady(begin=2, per_sec=20, steps=100)], warm_up_steps=0
    )
    assert common.steps_per_sec == pytest.approx((10, 20))
    assert common.share == pytest.approx(5 / 10)  # from 2 to 7 of 0 to 10


def test_what_one_does_alone_is_not_counted() -> None:
    """The first run is twice as fast once the second has ended."""
    slow, fast = steady(begin=0, per_sec=10, steps=50), steady(begin=5, per_sec=20, steps=50)
    first = slow + [Told(50 + told.step, told.secs) for told in fast[1:]]
    common = over_common_time([first, steady(begin=0, per_sec=10, steps=50)], warm_up_steps=0)
    assert common.steps_per_sec == pytest.approx((10, 10))


def test_warm_up_is_not_counted() -> None:
    slow_start = [Told(0, 0.0), Told(10, 100.0), Told(20, 101.0), Told(30, 102.0)]
    common = over_common_time([slow_start, slow_start], warm_up_steps=5)
    assert common.steps_per_sec == pytest.approx((10, 10))
    assert common.share == 1


def test_runs_one_after_the_other_are_refused() -> None:
    with pytest.raises(ValueError, match="at the same time"):
        over_common_time([steady(begin=0, per_sec=10, steps=50), steady(begin=6, per_sec=10, steps=50)], 0)


def test_too_few_standings_are_refused() -> None:
    with pytest.raises(ValueError, match="more steps"):
        over_common_time([[Told(5, 1.0)], steady(begin=0, per_sec=10, steps=50)], 0)


def test_between_two_standings() -> None:
    run = [Told(10, 1.0), Told(20, 3.0)]
    assert step_at(run, 1.0) == 10
    assert step_at(run, 2.5) == pytest.approx(17.5)
    with pytest.raises(ValueError, match="outside"):
        step_at(run, 3.5)
