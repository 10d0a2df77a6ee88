"""Where a resumed run begins to read, with data that changed and with data that did not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.checkpoints.checkpoint_files import Sidecar, prefix_of, sidecar_path
from parallax_runner.config.frozen import FIT, from_plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.identity import Contents
from parallax_runner.driver.data_position import settled_position
from parallax_runner.driver.recovery import continued
from parallax_runner.errors import CheckpointError
from parallax_runner.worker.rank import start_of

DAY1, DAY2 = Contents({"examples": "1000", "content": "a"}), Contents({"examples": "1200", "content": "b"})


def checkpoint(folder: Path, data: Contents | None = DAY1) -> Path:
    prefix = prefix_of(folder, 10)
    parts = {} if data is None else data.training
    sidecar = Sidecar(step=10, examples=80, seed=1, fingerprint="f", tracker_run_id=None, data=parts)
    folder.mkdir()
    sidecar_path(prefix).write_text(sidecar.text())
    return prefix


def config(folder: Path, position: str, **model: Any) -> RunConfig:
    ckpt = {"enabled": True, "dir": str(folder), "resume": "runs/day1", "position": position}
    return from_plain({"model": {"_target_": "models.linear", **model}, "train": {"seed": 1}, "ckpt": ckpt})


def settled(folder: Path, position: str, prefix: Path, data: Contents) -> str:
    return settled_position(config(folder, position), prefix, data)


def test_changed_data_is_refused_until_the_position_is_chosen(tmp_path: Path) -> None:
    prefix = checkpoint(tmp_path / "first")
    told = (
        f"ckpt.resume=runs/day1: the training data has changed since checkpoint {prefix} was written (examples: 1200 "
        "instead of 1000; the content of the examples differs). Set ckpt.position=start to begin the new data at its "
        "first example, or ckpt.position=keep to continue at the checkpoint's position, example 80; or restore the "
        "earlier data"
    )
    with pytest.raises(CheckpointError, match=f"^{re.escape(told)}$"):
        settled(tmp_path, "auto", prefix, DAY2)
    for position in ("keep", "start"):
        assert settled(tmp_path, position, prefix, DAY2) == position


def test_fit_gets_the_remedy_as_an_argument(tmp_path: Path) -> None:
    prefix = checkpoint(tmp_path / "first")
    with pytest.raises(CheckpointError, match=re.escape('Set overrides=["ckpt.position=start"] to begin')):
        settled_position(config(tmp_path, "auto", _target_=FIT), prefix, DAY2)


def test_the_same_data_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix = checkpoint(tmp_path / "first")
    assert settled(tmp_path, "auto", prefix, DAY1) == "auto"
    assert settled(tmp_path, "keep", prefix, DAY1) == "keep"
    assert settled(tmp_path, "start", prefix, DAY1) == "start"  # from another run: what the user asks for
    assert capsys.readouterr().err == ""


def test_a_run_that_began_new_data_does_not_begin_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same command, started again, finds its own checkpoint, which was trained on the new data."""
    prefix = checkpoint(tmp_path / "own", DAY2)
    assert settled(tmp_path / "own", "start", prefix, DAY2) == "keep"
    assert "was trained on the same data, so the run continues at example 80" in capsys.readouterr().err
    assert settled(tmp_path / "own", "start", prefix, DAY1) == "start"


def test_a_checkpoint_that_does_not_know_its_data_goes_on_as_before(tmp_path: Path) -> None:
    prefix = checkpoint(tmp_path / "own", None)
    assert settled(tmp_path / "own", "auto", prefix, DAY2) == "auto"
    assert settled(tmp_path / "own", "start", prefix, DAY2) == "start"


def test_ranks_begin_where_the_driver_has_settled(tmp_path: Path) -> None:
    prefix = str(checkpoint(tmp_path / "first"))
    begun = continued(config(tmp_path, "auto"), prefix)
    assert (start_of(begun).step, start_of(begun).examples) == (10, 80)
    afresh = from_plain({"ckpt": {"enabled": True, "dir": str(tmp_path), "resume": prefix, "position": "start"}})
    assert (start_of(afresh).step, start_of(afresh).examples) == (10, 0)


def test_a_restart_keeps_the_position_unless_it_begins_as_the_run_did(tmp_path: Path) -> None:
    begun = config(tmp_path, "start")
    assert continued(begun, "runs/day1") == begun
    assert continued(begun, "runs/day2/ckpt/model.ckpt-20").ckpt.position == "keep"
