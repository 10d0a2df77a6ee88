"""Opening a run's record from a configuration."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from parallax_runner.checkpoints.checkpoint_files import read_sidecar, sidecar_path
from parallax_runner.checkpoints.converted import write_converted
from parallax_runner.checkpoints.warm_start import WarmStart
from parallax_runner.config.frozen import SCRIPT, from_plain
from parallax_runner.driver import recording
from parallax_runner.driver.used_params import used_params
from parallax_runner.plan.plan import Plan
from parallax_runner.track.params import flatten
from parallax_runner.track.tracker import NoTracker, RunInfo, Start, Tracker


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
    "model": {"_target_": "m.build"},
    "model_name": "m",
    "comm": {"name": "hybrid", "routes": {"dense": "allreduce", "sparse": "ps"}},
    "ckpt": {"enabled": True, "dir": "ckpt"},
    "profile": {"name": "off", "dir": "p"},
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


def test_a_warm_start_is_named_by_its_run_or_its_file(tmp_path: Path) -> None:
    config = from_plain(CONFIG | {"ckpt": {"enabled": True, "dir": "ckpt", "resume": "never", "warm_start": "day1"}})
    theirs = write_converted(tmp_path / "theirs", {"one": np.ones(1)}, origin=tmp_path / "model.keras")
    WarmStart(str(theirs), (), (), ()).save(tmp_path)
    assert recording.warm_start_tag(config, tmp_path) == {recording.WARM_START_TAG: str(tmp_path / "model.keras")}
    sidecar = dataclasses.replace(read_sidecar(theirs), tracker_run_id="run 7")
    sidecar_path(theirs).write_text(sidecar.text(), encoding="utf-8")
    assert recording.warm_start_tag(config, tmp_path) == {recording.WARM_START_TAG: "run 7"}
    resumed = dataclasses.replace(config, ckpt=dataclasses.replace(config.ckpt, resume=str(theirs)))
    assert recording.warm_start_tag(resumed, tmp_path) == {}


@pytest.mark.parametrize("in_sweep", [True, False])
def test_a_tracker_is_opened_with_what_the_driver_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: type[Opened], in_sweep: bool
) -> None:
    start = Start(tmp_path / "source" / "ckpt" / "model.ckpt-3", "theirs")
    monkeypatch.setattr(recording, "_start_of", lambda _: start)
    config = from_plain({**CONFIG, "sweep": {"dir": str(tmp_path) if in_sweep else None}})
    tracker = recording.open_tracker(config, PLAN, tmp_path / "new", {"status": "failed"})
    assert not isinstance(tracker, NoTracker)
    (run,) = opened.runs
    assert run.name.startswith("m-mpi-2w-")
    assert run.run_dir == tmp_path / "new"
    assert run.tags == {"comm": "mine", "model": "m", "workers": 2, "servers": 0, "team": "x"}
    assert run.start == start
    assert run.sweep_dir == (tmp_path if in_sweep else None)
    assert not run.is_sweep
    assert run.summary == {"status": "failed"}
    assert {"user", "command"} <= set(run.origin)
    assert dict(run.config["partition"])["num"] == 4
    assert opened.params == [used_params(config)]


@pytest.mark.parametrize(
    ("action", "enabled", "is_recorded"),
    [("train", True, True), ("verify", True, True), ("train", False, False), ("plan", True, False)],
)
def test_what_is_recorded(action: str, enabled: bool, is_recorded: bool, opened: type[Opened]) -> None:
    config = from_plain({"action": action, "tracking": {"enabled": enabled, "tracker": "named"}})
    assert recording.tracker_class(config) is (opened if is_recorded else None)


def params_of(**fields: Any) -> dict[str, str]:
    return flatten(used_params(from_plain(CONFIG | fields)))


def test_parameters_have_no_null_and_no_number_that_is_yet_to_be_found() -> None:
    params = params_of()
    assert (params["partition.name"], "partition.num" in params) == ("search", False)
    assert params["comm.ps.protocol"] and "comm.mpi.use_allgatherv" in params and params["ckpt.dir"] == "ckpt"
    assert "null" not in params.values() and "comm.ps.staleness" not in params
    assert {key for key in params if key.startswith("profile")} == {"profile.name"}
    assert not [key for key in params if key.startswith(("simulate", "sweep"))]


@pytest.mark.parametrize(
    ("fields", "gone", "left"),
    [
        ({"comm": {"name": "mpi", "routes": {"dense": "allreduce", "sparse": "allgather"}}}, "comm.ps.", "comm.mpi."),
        ({"comm": {"name": "ps", "routes": {"dense": "ps", "sparse": "ps"}}}, "comm.mpi.", "comm.ps."),
        ({"comm": {"name": "local", "routes": {"dense": "local", "sparse": "local"}}}, "comm.mpi.", "comm.name"),
        ({"comm": {"name": "auto", "routes": None}}, "comm.routes", "comm.ps."),
        ({"ckpt": {"enabled": False, "dir": "d"}}, "ckpt.dir", "ckpt.enabled"),
        ({"partition": {"name": "off", "num": 4}}, "partition.num", "partition.name"),
        ({"partition": {"name": "fixed", "num": 4}}, "simulate.", "partition.num"),
        ({"sweep": {"dir": "/s"}}, "profile.dir", "sweep.dir"),
        ({"profile": {"name": "steps", "dir": "p"}}, "sweep.", "profile.dir"),
    ],
)
def test_parameters_of_groups_without_use_are_left_out(fields: dict[str, Any], gone: str, left: str) -> None:
    params = params_of(**fields)
    assert [key for key in params if key.startswith(gone)] == []
    assert [key for key in params if key.startswith(left)] != []


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"model": {"_target_": "models.lm.build"}, "model_name": "lm"}, "lm-mpi-2w-20261124-083000"),
        (
            {"model": {"_target_": SCRIPT, "path": "/home/me/train.py"}, "model_name": "script"},
            "train-mpi-2w-20261124-083000",
        ),
        (
            {"model": {"_target_": "models.lm.build"}, "model_name": "mine", "action": "verify"},
            "verify-mine-mpi-2w-20261124-083000",
        ),
    ],
)
def test_a_default_name_says_what_a_run_is(fields: dict[str, Any], name: str) -> None:
    config = from_plain({"action": "train", **fields})
    now = time.strptime("2026-11-24 08:30:00", "%Y-%m-%d %H:%M:%S")
    assert recording.default_run_name(config, PLAN, now) == name
