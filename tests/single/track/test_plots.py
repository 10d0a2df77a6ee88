"""Images of a run, drawn from its history."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from parallax_runner.track.plots import plot_run
from parallax_runner.track.scale import calm_limits
from parallax_runner.track.tracker import History

TAGS = {"model": "models.lm.build", "comm": "hybrid", "workers": "2"}


def history(*entries: tuple[int, dict[str, float]]) -> History:
    metrics: dict[str, list[tuple[int, float]]] = {}
    for step, values in entries:
        for key, value in values.items():
            metrics.setdefault(key, []).append((step, value))
    return History(metrics, TAGS)


@pytest.fixture
def axes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Axes]:
    """What was drawn, by the name of the image."""
    drawn: dict[str, Axes] = {}
    save = Figure.savefig

    def keep(figure: Figure, file: BinaryIO, **options: Any) -> None:
        partial = Path(file.name).name  # such as .loss.png.0123, until the image is complete
        drawn[partial.removeprefix(".").rpartition(".")[0]] = figure.axes[0]
        save(figure, file, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return drawn


def test_loss_and_throughput_are_images(tmp_path: Path, axes: dict[str, Axes]) -> None:
    recorded = history(
        (1, {"train/loss": 5.0, "throughput/words_per_sec": 100.0, "throughput/steps_per_sec": 1.0}),
        (10, {"train/loss": 3.0, "throughput/words_per_sec": 200.0, "throughput/steps_per_sec": 2.0}),
        (10, {"validation/loss": 4.0, "validation/perplexity": 54.6}),
    )
    paths = plot_run(tmp_path, recorded)
    assert paths == [tmp_path / "plots" / "loss.png", tmp_path / "plots" / "throughput.png"]
    for path in paths:
        height, width, _ = imread(path).shape
        assert (width, height) == (700, 400)
    training, validation = axes["loss.png"].get_lines()
    assert training.get_xydata().tolist() == [[1, 5], [10, 3]]
    assert validation.get_xydata().tolist() == [[10, 4]]
    (throughput,) = axes["throughput.png"].get_lines()
    assert throughput.get_xydata().tolist() == [[1, 100], [10, 200]]
    assert axes["throughput.png"].get_ylabel() == "words/s, all workers"
    assert axes["loss.png"].get_xlabel() == "step"
    assert axes["loss.png"].get_title() == "model models.lm.build, comm hybrid, workers 2"


def test_what_has_no_words_is_drawn_in_examples(tmp_path: Path, axes: dict[str, Axes]) -> None:
    recorded = history((1, {"throughput/examples_per_sec": 7.0, "throughput/steps_per_sec": 1.0}))
    assert [path.name for path in plot_run(tmp_path, recorded)] == ["throughput.png"]
    assert axes["throughput.png"].get_ylabel() == "examples/s, all workers"


def test_the_slow_first_report_is_not_in_the_throughput(tmp_path: Path, axes: dict[str, Axes]) -> None:
    recorded = history(*((step, {"throughput/steps_per_sec": rate}) for step, rate in ((1, 1.0), (10, 9.0), (20, 8.0))))
    plot_run(tmp_path, recorded)
    (throughput,) = axes["throughput.png"].get_lines()
    assert throughput.get_xydata().tolist() == [[10, 9], [20, 8]]
    assert axes["throughput.png"].get_ylim() == pytest.approx((0, 9.45))


def test_noise_does_not_fill_the_axis(tmp_path: Path, axes: dict[str, Axes]) -> None:
    plot_run(tmp_path, history((1, {"train/loss": 7.600}), (2, {"train/loss": 7.608})))
    low, high = axes["loss.png"].get_ylim()
    assert low < 7.3 and high > 7.9


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ([0.0, 10.0], (-0.5, 10.5)),
        ([100.0, 100.0], (94.5, 105.5)),
        ([0.0], (-0.55, 0.55)),
        ([math.nan, 1.0, math.inf, 2.0], (0.95, 2.05)),
        ([math.nan], None),
    ],
)
def test_limits(values: list[float], limits: tuple[float, float] | None) -> None:
    assert calm_limits(values) == (None if limits is None else pytest.approx(limits))


def test_a_loss_that_is_no_number_leaves_a_gap(tmp_path: Path, axes: dict[str, Axes]) -> None:
    losses = (5.0, math.nan, math.inf)
    plot_run(tmp_path, history(*((step, {"train/loss": loss}) for step, loss in enumerate(losses, start=1))))
    (line,) = axes["loss.png"].get_lines()
    assert str(line.get_ydata().tolist()) == "[5.0, nan, nan]"


def test_a_run_without_numbers_has_no_images(tmp_path: Path) -> None:
    assert plot_run(tmp_path, History()) == []
    assert not (tmp_path / "plots").exists()


def test_no_window_system_is_asked_for() -> None:
    program = (
        "import sys, parallax_runner.track.plots\n"
        "print(*sorted({'matplotlib.pyplot', 'tensorflow', 'mlflow', 'tkinter'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
