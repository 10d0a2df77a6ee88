import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.config.objective import Objective
from parallax_runner.driver import report
from parallax_runner.driver.run_summary import ObjectiveSummary, RunSummary, VerifySummary
from parallax_runner.errors import StorageError
from parallax_runner.launch.blame.first_death import Failure
from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.launch.watch.whereabouts import SESSION_RUN, Place, Whereabouts

RUN_DIR = Path("/runs/a")
COMMAND = "python -m parallax_runner model=simple hydra.run.dir=/runs/a"


def summary(**fields: Any) -> RunSummary:
    return RunSummary(**{"status": "failed", "action": "train", "comm": "mpi", "model": "m", "workers": 2} | fields)


def test_a_failure_is_told_in_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    where = Place(SESSION_RUN, "train/loop.py:73 _step")
    others = tuple(Whereabouts("worker", index, "h", Activity(Kind.STEP, 41), 3.0, where, 40) for index in (0, 2, 3))
    failure = Failure("worker", 1, "h", "killed by signal 9 (SIGKILL)", ("its end",), others=others)
    report.tell_end(summary(ckpt_path="/runs/a/ckpt/model.ckpt-30"), failure, RUN_DIR, COMMAND)
    assert capsys.readouterr().err == (
        "parallax_runner: worker 1 on h: killed by signal 9 (SIGKILL)\n"
        "its last lines:\n    its end\n"
        "meanwhile:\n    workers 0, 2–3 waited in step 41 (session.run)\n"
        "logs: /runs/a/logs\n"
        f"30 steps are saved; to continue:\n    {COMMAND}\n"
    )


def test_an_interruption_is_told_in_two(capsys: pytest.CaptureFixture[str]) -> None:
    report.tell_end(summary(status="interrupted"), None, RUN_DIR, COMMAND, ["A", "B"])
    assert capsys.readouterr().err == (
        f"parallax_runner: interrupted; /runs/a\nto continue (needs the environment variables A, B):\n    {COMMAND}\n"
    )


def test_a_restart_is_told_in_one(capsys: pytest.CaptureFixture[str]) -> None:
    failure = Failure("worker", 1, "h", "killed by signal 9 (SIGKILL)", ())
    report.tell_restart(failure, step=300, restart=1, max_restarts=3)
    assert capsys.readouterr().err == "worker 1 on h: killed by signal 9 (SIGKILL); restart 1 of 3 from step 300\n"


def test_only_the_disks_errors_become_the_disks() -> None:
    full = report.explain_storage(OSError(28, "No space left on device"), RUN_DIR)
    assert isinstance(full, StorageError)
    assert str(full).startswith("a file cannot be written: No space left on device; ")
    ours = report.explain_storage(PermissionError(13, "Permission denied", "/runs/a/plan.json"), RUN_DIR)
    assert str(ours).startswith("/runs/a/plan.json: cannot be written: Permission denied")
    models = FileNotFoundError(2, "No such file or directory", "/elsewhere/vectors.txt")
    assert report.explain_storage(models, RUN_DIR) is models


def test_a_summary_that_cannot_be_written_hides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summary.json").mkdir()
    report.leave_summary(tmp_path, summary())
    assert f"{tmp_path / 'summary.json'} cannot be written: Is a directory" in capsys.readouterr().err


def test_a_run_is_compared_by_its_training_loss_where_nothing_else_was_found() -> None:
    assert summary(loss_last=3.0).objective == Objective("training loss", 3.0, "minimize")
    found = summary(loss_last=3.0, compared=ObjectiveSummary("auc", 0.7, "maximize"))
    assert found.objective == Objective("auc", 0.7, "maximize")


def test_a_verified_run_counts_what_unmerged_rows_would_change(capsys: pytest.CaptureFixture[str]) -> None:
    for names in ((), ("table",), ("table", "kernel")):
        verification = VerifySummary(verified=True, max_difference=1e-9, differ_unmerged=names)
        verified = summary(action="verify", status="finished", steps=3, verification=verification)
        report.tell_end(verified, None, RUN_DIR)
    verified = (
        "verified: after 3 steps, every variable matches the result on one device; the largest difference is 1e-09 of "
        "the variable's change"
    )
    differ = (
        "stock TensorFlow and Keras differ in {} if a batch repeats an id; /runs/a/summary.json lists the names under "
        "differ_unmerged (docs/repeated-ids.md)"
    )
    lines = [verified, verified, differ.format("1 variable"), verified, differ.format("2 variables")]
    expected = [f"{line}; /runs/a" if line == verified else line for line in lines]
    assert capsys.readouterr().err.splitlines() == expected


def test_the_end_of_a_run_names_each_number(capsys: pytest.CaptureFixture[str]) -> None:
    ended = summary(status="finished", steps=9, loss_last=3.0)
    report.tell_end(ended, None, RUN_DIR)
    for compared in (("validation loss", 4.0, "minimize"), ("perplexity", 54.6, "minimize"), ("auc", 0.7, "maximize")):
        report.tell_end(dataclasses.replace(ended, compared=ObjectiveSummary(*compared)), None, RUN_DIR)
    report.tell_end(dataclasses.replace(ended, loss_last=math.nan), None, RUN_DIR)
    report.tell_end(dataclasses.replace(ended, loss_last=None, unknown_loss="there are several"), None, RUN_DIR)
    assert capsys.readouterr().err == (
        "finished: 9 steps, loss 3; /runs/a\n"
        "finished: 9 steps, loss 3, validation loss 4; /runs/a\n"
        "finished: 9 steps, loss 3, perplexity 54.6; /runs/a\n"
        "finished: 9 steps, loss 3, auc 0.7; /runs/a\n"
        "finished: 9 steps, loss nan; /runs/a\n"
        "finished: 9 steps, loss unknown; /runs/a\n"
    )
