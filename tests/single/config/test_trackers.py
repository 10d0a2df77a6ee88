"""Classes that record: the built-in ones, an installed package's, any by its dotted name."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_runner.config.named_class import known_names
from parallax_runner.config.trackers import BUILT_IN, ENTRY_POINTS, tracker_class
from parallax_runner.track.mlflow.tracker import MlflowTracker
from parallax_runner.track.tracker import NoTracker


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose metadata names four classes, of which one is there."""
    metadata = tmp_path / "other-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        f"[{ENTRY_POINTS}]\n"
        "silent = parallax_runner.track.tracker:NoTracker\n"
        "broken = no_such:Tracker\n"
        "failing = module_that_fails:Tracker\n"
        "mlflow = parallax_runner.track.tracker:NoTracker\n"
    )
    (tmp_path / "module_that_fails.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_each_way_to_name_a_class(installed: None) -> None:
    assert tracker_class("mlflow") is MlflowTracker, "no package hides a built-in one"
    assert tracker_class("silent") is NoTracker
    assert tracker_class("parallax_runner.track.tracker.NoTracker") is NoTracker
    assert known_names(BUILT_IN, ENTRY_POINTS) == ["mlflow", "broken", "failing", "silent"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("silen", "expected one of mlflow, broken, failing, silent, or a class such as package.module.Class"),
        ("broken", "no_such.Tracker cannot be imported: ModuleNotFoundError: No module named 'no_such'"),
        ("failing", "module_that_fails.Tracker cannot be imported: ZeroDivisionError: division by zero"),
        ("json.Tracker", "json.Tracker cannot be imported: AttributeError"),
        ("json.dumps", "expected a class that extends parallax_runner.track.tracker.Tracker"),
        ("collections.deque", "expected a class that extends parallax_runner.track.tracker.Tracker"),
    ],
)
def test_what_is_wrong_with_a_name(name: str, reason: str, installed: None) -> None:
    with pytest.raises(LookupError) as refused:
        tracker_class(name)
    assert reason in str(refused.value)
