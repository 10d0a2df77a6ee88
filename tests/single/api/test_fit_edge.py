"""What leaves `fit`: errors of runs, refusals without this project's frames, and the user's own exceptions."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.api.fit_edge import in_users_process
from parallax_runner.driver.ended import RunEnded
from parallax_runner.driver.run_summary import RunSummary
from parallax_runner.errors import CaptureError, ConfigError, FitError
from parallax_runner.process.user_code import must_not_exit

RUN_DIR = Path("runs/1")


def ended(exit_status: int, **known: Any) -> RunEnded:
    summary = RunSummary(action="train", comm="mpi", model="fit", workers=2, **{"status": "failed", **known})
    return RunEnded(exit_status, summary, RUN_DIR)


def raised(error: BaseException) -> pytest.ExceptionInfo[BaseException]:
    @in_users_process
    def fit() -> None:
        raise error

    with pytest.raises(BaseException) as found:
        fit()
    return found


def test_a_failed_run() -> None:
    error = raised(ended(3, error="worker 1 was killed", ckpt_path="runs/1/ckpt/model.ckpt-5")).value
    assert isinstance(error, FitError) and str(error) == "worker 1 was killed; logs: runs/1/logs"
    assert (error.status, error.exit_status, error.run_dir) == ("failed", 3, "runs/1")
    assert error.ckpt_path == "runs/1/ckpt/model.ckpt-5" and error.__context__ is None
    assert error.called_at is not None and error.called_at.startswith(__file__)


@pytest.mark.parametrize(
    ("ckpt_path", "told"),
    [
        (None, "SIGTERM stopped the run in runs/1 before its first checkpoint"),
        (
            "a/model.ckpt-5",
            "SIGTERM stopped the run; its newest checkpoint is a/model.ckpt-5; to ",
        ),
    ],
)
def test_a_stopped_run(ckpt_path: str | None, told: str) -> None:
    error = raised(ended(143, status="interrupted", ckpt_path=ckpt_path)).value
    assert isinstance(error, FitError) and str(error).startswith(told)
    assert (error.status, error.exit_status, error.ckpt_path) == ("interrupted", 143, ckpt_path)


def refused_by_a_library() -> ConfigError:
    try:
        int("x")
    except ValueError as error:
        found = ConfigError("batch_size=x: expected an integer")
        found.__cause__ = error.with_traceback(None)
        return found


def test_a_refusal_has_the_users_frames_only() -> None:
    found = raised(refused_by_a_library())
    assert found.value.__cause__ is None and "ValueError" not in "".join(traceback.format_exception(found.value))
    files = {Path(str(entry.path)).name for entry in found.traceback}
    assert files == {Path(__file__).name, "fit_edge.py"}
    assert [entry.name for entry in found.traceback if Path(str(entry.path)).name == "fit_edge.py"] == ["call"]
    (hidden,) = [entry for entry in found.traceback if entry.name == "call"]
    assert hidden.ishidden(found)


def test_a_cause_in_the_users_code_stays() -> None:
    def fails() -> None:
        with must_not_exit("the model", CaptureError):
            raise SystemExit(3)

    try:
        fails()
    except CaptureError as error:
        found = raised(error)
    assert isinstance(found.value.__cause__, SystemExit)
    frames = traceback.extract_tb(found.value.__cause__.__traceback__)
    assert [frame.name for frame in frames] == ["fails"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("of a callback")])
def test_the_users_own_exceptions_pass(error: BaseException) -> None:
    assert raised(error).value is error
