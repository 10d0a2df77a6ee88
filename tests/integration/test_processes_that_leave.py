"""A launch one of whose processes must end: the others save and end, and it counts as no death. The children are tiny
and import no TensorFlow."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from parallax_runner.launch.job import LaunchSpec
from parallax_runner.launch.launchers.direct import Direct
from parallax_runner.launch.launchers.launcher import Leaving
from parallax_runner.launch.processes import LEAVES, Message, RunResult, run
from tests.integration.dummies import Dummies


class Warned(Direct):
    """Says that worker 1 must end, from the moment of its first report on."""

    def __init__(self, secs: float) -> None:
        self._secs, self.is_warned = secs, False

    def leaving(self) -> Leaving | None:
        """Returns worker 1."""
        return Leaving("worker", 1, "n1", self._secs) if self.is_warned else None


def spec_of(job: Dummies, workers: str, secs: float) -> LaunchSpec:
    return dataclasses.replace(job.spec(workers, "serve", direct=True), launcher=Warned(secs))


def result_of(spec: LaunchSpec) -> RunResult:
    def warn(message: Message) -> None:
        if message.kind == "progress":
            spec.launcher.is_warned = True

    return run(spec, on_message=warn)


def test_all_workers_end_on_their_own(tmp_path: Path) -> None:
    job = Dummies(tmp_path)
    result = result_of(spec_of(job, "until_stop,until_stop", 60.0))
    assert (result.status, result.exit_status) == ("failed", 1)
    assert all(result.done["worker", rank]["stopped"] for rank in (0, 1))
    failure = result.failure
    assert failure is not None and failure.is_leaving and not failure.recurs
    assert str(failure) == f"worker 1 on n1: {LEAVES}"
    assert job.left() == []


def test_one_that_does_not_end_in_time_is_ended(tmp_path: Path) -> None:
    job = Dummies(tmp_path)
    result = result_of(spec_of(job, "until_stop,hang", 1.0))
    assert result.failure is not None and result.failure.is_leaving
    assert ("worker", 1) not in result.done and job.left() == []
