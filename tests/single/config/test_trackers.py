"""Classes that record: the built-in ones, an installed package's, any by its dotted name."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_runner.config.compose import Composer
from parallax_runner.config.named_class import known_names
from parallax_runner.config.trackers import BUILT_IN, ENTRY_POINTS, declared_by, tracker_class
from parallax_runner.driver.check import validated
from parallax_runner.errors import ConfigError
from parallax_runner.track.mlflow.tracker import MlflowTracker
from parallax_runner.track.tracker import NoTracker, Tracker


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


def test_a_name_without_a_class_declares_nothing(installed: None) -> None:
    assert (declared_by("mlflow"), declared_by("silent")) == (MlflowTracker, NoTracker)
    assert declared_by("broken") is Tracker
    assert Tracker.has_options and not MlflowTracker.has_options


def test_an_uri_of_a_tracker_without_a_database_is_its_own_matter(installed: None) -> None:
    """MLflow's tracker refuses a database in memory, and a subclass of it does so, too."""
    own = "tracking.tracker=parallax_runner.track.tracker.NoTracker"
    job = Composer().job([own, "tracking.uri='sqlite://'", "tracking.experiment=null"])
    assert validated(job).tracking.uri == "sqlite://"
    with pytest.raises(ConfigError, match="this database is in memory"):
        validated(Composer().job(["tracking.uri='sqlite://'"]))
    with pytest.raises(ConfigError, match=r"^tracking\.experiment=null"):
        validated(Composer().job(["tracking.experiment=null"]))
