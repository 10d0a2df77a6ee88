"""Opening a run's record from a configuration: which earlier MLflow run it asks for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.config.frozen import SCRIPT, from_plain
from parallax_runner.driver import recording
from parallax_runner.plan.plan import Plan
from parallax_runner.track.continuing import Start
from parallax_runner.track.journal import Header
from parallax_runner.track.tracker import NoTracker


@pytest.mark.parametrize("in_sweep", [True, False])
def test_a_job_of_a_sweep_names_the_run_that_it_starts_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_sweep: bool
) -> None:
    headers: list[Header] = []

    def tracker(run_dir: Path, header: Header, **_: Any) -> NoTracker:
        headers.append(header)
        return NoTracker()

    monkeypatch.setattr(recording, "JournalTracker", tracker)
    start = Start(tmp_path / "source" / "ckpt" / "model.ckpt-3", "theirs")
    monkeypatch.setattr(recording, "_checkpoint_of", lambda _: start)
    config = from_plain(
        {
            "tracking": {"enabled": True, "uri": "http://x", "experiment": "e", "run_name": None, "tags": {}},
            "action": "train",
            "model": {"_target_": "m"},
            "sweep": {"dir": str(tmp_path) if in_sweep else None},
        }
    )
    plan = Plan(comm="mpi", workers=2, servers=0, average_sparse=False, fingerprint="f", variables=(), notes=())
    recording.open_tracker(config, plan, tmp_path / "new", {})
    (header,) = headers
    assert header.run_name is not None and header.run_name.startswith("m-mpi-2w-")
    assert header.continues == (None if in_sweep else "theirs")
    assert header.tags.get("parallax.resumed_from") == ("theirs" if in_sweep else None)


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
    plan = Plan(comm="mpi", workers=2, servers=0, average_sparse=False, fingerprint="f", variables=(), notes=())
    now = time.strptime("2026-11-24 08:30:00", "%Y-%m-%d %H:%M:%S")
    assert recording.default_run_name(config, plan, now) == name
