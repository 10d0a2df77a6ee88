"""Classes that a configuration names: this project's own, an installed package's, any by its dotted name."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_runner.config.extensions import TRACKERS, ExtensionPoint

POINT = ExtensionPoint(group="tests.dicts", base="builtins.dict", own={"counter": "collections.Counter"})


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose metadata names two classes, of which one is not there."""
    metadata = tmp_path / "other-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    points = (
        "[tests.dicts]\nordered = collections:OrderedDict\nbroken = no_such:Dict\n"
        "[parallax_runner.trackers]\nsilent = parallax_runner.track.tracker:NoTracker\n"
    )
    (metadata / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)


def test_each_way_to_name_a_class(installed: None) -> None:
    found = {name: POINT.find(name).__name__ for name in ("counter", "ordered", "collections.defaultdict")}
    assert found == {"counter": "Counter", "ordered": "OrderedDict", "collections.defaultdict": "defaultdict"}
    assert POINT.names() == ["broken", "counter", "ordered"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("order", "no such name, expected one of broken, counter, ordered or a class as package.module.Class"),
        ("broken", "no_such.Dict cannot be imported: ModuleNotFoundError"),
        ("collections.deque", "collections.deque is no subclass of builtins.dict"),
        ("json.dumps", "json.dumps is no subclass of builtins.dict"),
    ],
)
def test_what_is_wrong_with_a_name(name: str, reason: str, installed: None) -> None:
    with pytest.raises(LookupError) as refused:
        POINT.find(name)
    assert reason in str(refused.value)


def test_a_module_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_that_fails.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LookupError, match="cannot be imported: ZeroDivisionError: division by zero"):
        POINT.find("module_that_fails.Dict")


def test_trackers(installed: None) -> None:
    assert {name: TRACKERS.find(name).__name__ for name in TRACKERS.names()} == {
        "mlflow": "MlflowTracker",
        "silent": "NoTracker",
    }
