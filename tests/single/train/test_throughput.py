"""Figures of a run's steps, warm-up left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallax_runner.train.throughput import WARM_UP_STEPS, Throughput


def figures(secs: list[float], *sent_bytes: float) -> dict[str, Any]:
    throughput = Throughput()
    for number in secs:
        throughput.add(number, np.array(sent_bytes))
    return throughput.figures()


def test_no_steps_no_figures() -> None:
    assert set(figures([]).values()) == {None}


def test_the_first_steps_are_left_out() -> None:
    measured = [0.1, 0.3, 0.2, 0.2, 0.1, 0.3, 0.2, 0.2, 0.1, 0.3]
    found = figures([100.0] * WARM_UP_STEPS + measured)
    assert found["steps_per_sec"] == pytest.approx(5.0)  # 10 steps in 2 s
    assert found["step_ms_p50"] == pytest.approx(200)
    assert found["step_ms_p90"] == pytest.approx(300)


def test_in_a_short_run_half_are_left_out() -> None:
    found = figures([100.0, 100.0, 0.5, 0.25])
    assert found["steps_per_sec"] == pytest.approx(2 / 0.75)
    assert found["step_ms_p50"] == pytest.approx(375)


def test_one_step_is_better_than_none() -> None:
    assert figures([0.5], 5, 2) == {
        "steps_per_sec": 2,
        "step_ms_p50": 500,
        "step_ms_p90": 500,
        "data_wait_share": None,
        "sent_bytes_per_step": 7,
        "sent_bytes_by_variable": [5, 2],
    }


def test_the_time_without_a_batch_is_a_share_of_the_measured_steps() -> None:
    throughput = Throughput()
    for waited_secs, step_secs, steps in [(90.0, 100.0, 1), (8.0, 9.0, 1), (0.25, 1.0, 1), (0.5, 1.0, 2)]:
        throughput.waited(waited_secs)
        throughput.add(step_secs, np.array([1.0]), steps=steps)
    # The last three of five steps: 1 s and twice 0.5 s.
    assert throughput.figures()["data_wait_share"] == pytest.approx(0.75 / 2)
    throughput.begin_again()
    throughput.waited(0.0)
    throughput.add(1.0, np.array([1.0]))
    assert throughput.figures()["data_wait_share"] == 0


def test_bytes_are_a_mean_over_all_steps() -> None:
    throughput = Throughput()
    for number in (10.0, 20.0, 60.0):
        throughput.add(1.0, np.array([number, 3.0]))
    assert throughput.figures()["sent_bytes_per_step"] == 33
    assert throughput.figures()["sent_bytes_by_variable"] == [30, 3]


def test_percentiles_lie_within_what_was_measured() -> None:
    found = figures([1.0, 1.0, 0.2, 0.4])
    assert found["step_ms_p90"] is not None
    assert 200 <= found["step_ms_p90"] <= 400


def test_steps_that_passed_meanwhile_are_steps() -> None:
    throughput = Throughput()
    throughput.add(1.0, np.array([20.0]))
    throughput.add(3.0, np.array([30.0]), steps=3)
    throughput.add(1.0, np.array([40.0]), steps=0)
    assert throughput.step_secs == [1.0] * 4
    assert throughput.figures()["sent_bytes_per_step"] == 12.5
