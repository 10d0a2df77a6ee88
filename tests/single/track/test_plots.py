"""Images of a run, drawn from its journal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from parallax_runner.track.journal import Header, Journal
from parallax_runner.track.plots import plot_run

HEADER = Header("sqlite:///mlflow.db", "e", None, {"model": "models.lm.build", "comm": "hybrid", "workers": "2"})


def write(run_dir: Path, *entries: tuple[int, dict[str, Any]]) -> None:
    journal = Journal(run_dir / "journal.jsonl", HEADER)
    for step, metrics in entries:
        journal.append("metrics", step=step, time_ms=0, metrics=metrics)
    journal.close()


@pytest.fixture
def axes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Axes]:
    """What was drawn, by the name of the image."""
    drawn: dict[str, Axes] = {}
    save = Figure.savefig

    def keep(figure: Figure, path: Path, **options: Any) -> None:
        drawn[path.name] = figure.axes[0]
        save(figure, path, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return drawn


def test_loss_and_throughput_are_images(tmp_path: Path, axes: dict[str, Axes]) -> None:
    write(
        tmp_path,
        (1, {"train/loss": 5.0, "throughput/words_per_sec": 100.0, "throughput/steps_per_sec": 1.0}),
        (10, {"train/loss": 3.0, "throughput/words_per_sec": 200.0, "throughput/steps_per_sec": 2.0}),
        (10, {"validation/loss": 4.0, "validation/perplexity": 54.6}),
    )
    paths = plot_run(tmp_path)
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
    write(tmp_path, (1, {"throughput/examples_per_sec": 7.0, "throughput/steps_per_sec": 1.0}))
    assert [path.name for path in plot_run(tmp_path)] == ["throughput.png"]
    assert axes["throughput.png"].get_ylabel() == "examples/s, all workers"


def test_a_loss_that_is_no_number_leaves_a_gap(tmp_path: Path, axes: dict[str, Axes]) -> None:
    write(tmp_path, (1, {"train/loss": 5.0}), (2, {"train/loss": "nan"}), (3, {"train/loss": "inf"}))
    plot_run(tmp_path)
    (line,) = axes["loss.png"].get_lines()
    assert str(line.get_ydata().tolist()) == "[5.0, nan, nan]"


def test_the_present_run_of_a_used_directory(tmp_path: Path, axes: dict[str, Axes]) -> None:
    write(tmp_path, (1, {"train/loss": 5.0}))
    (tmp_path / "journal.jsonl").rename(tmp_path / "journal.2.jsonl")
    write(tmp_path, (1, {"train/loss": 9.0}))
    plot_run(tmp_path)
    assert axes["loss.png"].get_lines()[0].get_ydata().tolist() == [5.0]


def test_a_run_without_numbers_has_no_images(tmp_path: Path) -> None:
    assert plot_run(tmp_path) == []
    write(tmp_path)
    assert plot_run(tmp_path) == []
    assert not (tmp_path / "plots").exists()


def test_no_window_system_is_asked_for() -> None:
    program = (
        "import sys, parallax_runner.track.plots\n"
        "print(*sorted({'matplotlib.pyplot', 'tensorflow', 'mlflow', 'tkinter'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
