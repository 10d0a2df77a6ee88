"""Combines the best jobs of a sweep into one model that averages their predictions (`sweep.ensemble`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from parallax_runner.errors import ExportError, Setting
from parallax_runner.files.plain import read_object, reason_of
from parallax_runner.sweep.results import Result, text_in
from parallax_runner.track.run_record import SUMMARY

FOLDER = "ensemble"
MODULE = "parallax_runner.export.ensemble"


def make_ensemble(ranked: Sequence[Result], sweep_dir: Path, count: int) -> str:
    """Writes the ensemble of the `count` best jobs as a SavedModel to `sweep_dir/ensemble`. Returns a line that
    describes the ensemble.

    Raises ExportError if fewer than `count` jobs have a rank, a job has no SavedModel, or the models cannot be
    combined.
    """
    best = [one for one in ranked if one.rank is not None][:count]
    if len(best) < count:
        raise ExportError(f"only {len(best)} of the sweep's jobs could be ranked").about(
            Setting.of("sweep.ensemble", count)
        )
    members = [_saved_model_of(one) for one in best]
    folder = sweep_dir / FOLDER
    done = subprocess.run(
        [sys.executable, "-m", MODULE, str(folder), *members], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ExportError(reason.removeprefix("parallax_runner: ")).about(Setting.of("sweep.ensemble", count))
    names = done.stdout.strip().splitlines()[-1]
    return f"ensemble of {', '.join(one.job for one in best)}: mean of {names}; {folder}"


def _saved_model_of(job: Result) -> str:
    path = Path(job.run_dir) / SUMMARY
    try:
        _, summary = read_object(path)
    except (OSError, ValueError) as error:
        raise ExportError(f"{job.job} has no SavedModel: {path} cannot be read: {reason_of(error)}") from error
    folder = text_in(summary, "saved_model")
    if folder:
        return folder
    if summary.get("saved_model") is not None:
        raise ExportError(f"{job.job} has no SavedModel: {path} is damaged: expected a folder as saved_model")
    why = text_in(summary, "saved_model_error") or "it was not requested when the job ran"
    raise ExportError(f"{job.job} has no SavedModel: {why}")
