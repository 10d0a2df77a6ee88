"""Opening a run's record from a configuration."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from parallax_runner.config.frozen import SCRIPT, from_plain
from parallax_runner.driver import recording
from parallax_runner.plan.plan import Plan
from parallax_runner.track.tracker import RunInfo, Start, Tracker


class Opened(Tracker):
    """Remembers what it was opened with, and the parameters."""

    runs: ClassVar[list[RunInfo]] = []
    params: ClassVar[list[Mapping[str, Any]]] = []

    def __init__(self, run: RunInfo) -> None:
        self.runs.append(run)

    def log_params(self, params: Mapping[str, Any]) -> None:
        self.params.append(params)


PLAN = Plan(comm="mpi", workers=2, servers=0, fingerprint="f", variables=(), notes=())
CONFIG: dict[str, Any] = {
    "action": "train",
    "model": {"_target_": "m"},
    "partition": {"name": "search", "num": 4},
    "sweep": {"dir": None},
    "tracking": {"enabled": True, "tracker": "named", "run_name": None, "tags": {"team": "x", "comm": "mine"}},
}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> type[Opened]:
    monkeypatch.setattr(recording, "find_tracker", {"named": Opened}.__getitem__)
    monkeypatch.setattr(Opened, "runs", [])
    monkeypatch.setattr(Opened, "params", [])
    return Opened


@pytest.mark.parametrize("in_sweep", [True, False])
def test_a_tracker_is_opened_with_what_the_driver_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: type[Opened], in_sweep: bool
) -> None:
    start = Start(tmp_path / "source" / "ckpt" / "model.ckpt-3", "theirs")
    monkeypatch.setattr(recording, "_start_of", lambda _: start)
    config = from_plain({**CONFIG, "sweep": {"dir": str(tmp_path) if in_sweep else None}})
    tracker = recording.open_tracker(config, PLAN, tmp_path / "new", {"status": "failed"})
    assert isinstance(tracker, Opened)
    (run,) = opened.runs
    assert run.name.startswith("m-mpi-2w-")
    assert run.run_dir == tmp_path / "new"
    assert run.tags == {"comm": "mine", "model": "m", "workers": 2, "servers": 0, "team": "x"}
    assert run.start == start
    assert run.sweep_dir == (tmp_path if in_sweep else None)
    assert not run.is_sweep
    assert run.summary == {"status": "failed"}
    assert {"user", "command"} <= set(run.origin)
    partition = dict(run.config["partition"])
    assert (partition["name"], partition.pop("num")) == ("search", 4)
    (params,) = opened.params
    assert params == run.config | {"partition": partition}, "the number is yet to be found"


@pytest.mark.parametrize(
    ("action", "enabled", "is_recorded"),
    [("train", True, True), ("verify", True, True), ("train", False, False), ("plan", True, False)],
)
def test_what_is_recorded(action: str, enabled: bool, is_recorded: bool, opened: type[Opened]) -> None:
    config = from_plain({"action": action, "tracking": {"enabled": enabled, "tracker": "named"}})
    assert recording.tracker_class(config) is (opened if is_recorded else None)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"model": {"_target_": "models.lm.build"}}, "lm-mpi-2w-20261124-083000"),
        ({"model": {"_target_": "mine.models.wide"}}, "wide-mpi-2w-20261124-083000"),
        ({"model": {"_target_": "build"}}, "build-mpi-2w-20261124-083000"),
        ({"model": {"_target_": SCRIPT, "path": "/home/me/train.py"}}, "train-mpi-2w-20261124-083000"),
        ({"model": {"_target_": "models.lm.build"}, "action": "verify"}, "verify-lm-mpi-2w-20261124-083000"),
    ],
)
def test_a_default_name_says_what_a_run_is(fields: dict[str, Any], name: str) -> None:
    config = from_plain({"action": "train", **fields})
    now = time.strptime("2026-11-24 08:30:00", "%Y-%m-%d %H:%M:%S")
    assert recording.default_run_name(config, PLAN, now) == name
