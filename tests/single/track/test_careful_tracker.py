"""A tracker that fails in every method: the run goes on, and one note says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from parallax_runner.track.careful import CarefulTracker
from parallax_runner.track.tracker import DatasetFacts, History, Tracker

CALLS: dict[str, tuple[Any, ...]] = {
    "log_params": ({},),
    "log_metrics": (1, {}),
    "log_sample": ({},),
    "set_tags": ({},),
    "log_artifact": (Path("x"),),
    "log_final_file": (Path("x"),),
    "log_dataset": (DatasetFacts("n", "d", "training", {}, 1, {}),),
    "log_checkpoint": (Path("x"),),
    "log_model": (Path("x"),),
    "history": (),
    "end": ("finished",),
}


def fail(*_: object) -> NoReturn:
    raise ValueError("no space for http://me:password@host")


class Failing(Tracker):
    """Opens, and then fails."""

    def __init__(self) -> None:
        for name in CALLS:
            setattr(self, name, fail)

    @property
    def run_id(self) -> str | None:
        fail()


def test_every_method_of_a_tracker_is_called_with_care() -> None:
    """What a tracker declares in class attributes is not called."""
    names = [name for name in vars(Tracker) if not name.startswith("_")]
    own = {name for name in names if callable(getattr(Tracker, name))} - {"check", "sync", "run_id_in"}
    assert own == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_a_method_that_fails(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = CarefulTracker(Failing())
    assert getattr(tracker, name)(*CALLS[name]) == (History() if name == "history" else None)
    assert f"Failing.{name}: ValueError: no space for http://***@host. The run continues" in capsys.readouterr().err
    assert tracker.run_id is None
    tracker.end("finished")
    assert capsys.readouterr().err == "", "one note is enough"


def test_a_signal_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = Failing()

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(tracker, "end", interrupt)
    with pytest.raises(KeyboardInterrupt):
        CarefulTracker(tracker).end("finished")
