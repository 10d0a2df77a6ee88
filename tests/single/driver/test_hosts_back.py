"""A restarted run waits for a host that it cannot reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from parallax_runner.driver import hosts_back
from parallax_runner.driver.hosts_back import when_back
from parallax_runner.errors import LaunchError
from parallax_runner.launch.job import Job, LaunchSpec
from parallax_runner.launch.launchers.local import Local


@dataclasses.dataclass
class Away(Local):
    """A launcher whose hosts are away for some checks."""

    fails: int

    def check(self, folders: Sequence[Path], stopped: Callable[[], bool]) -> None:
        """Fails as often as it was told to."""
        self.fails -= 1
        if self.fails >= 0:
            raise LaunchError("host 'far' cannot be reached")


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_back, "BETWEEN_SECS", 0.01)


def spec_of(launcher: Away) -> LaunchSpec:
    return LaunchSpec(Job(Path("run"), workers=2), launcher)


def test_it_waits_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    spec = spec_of(Away(3))
    assert when_back(lambda: spec) is spec
    told = "parallax_runner: host 'far' cannot be reached. The run waits for this host, for at most 15 min"
    assert capsys.readouterr().err.splitlines() == [told]


def test_a_host_that_is_there_is_not_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    when_back(lambda: spec_of(Away(0)))
    assert capsys.readouterr().err == ""


def test_a_host_that_does_not_come_back_ends_the_run() -> None:
    with pytest.raises(LaunchError, match=r"host 'far' cannot be reached$"):
        when_back(lambda: spec_of(Away(1000)), most_secs=0.1)
