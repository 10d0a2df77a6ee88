"""A run that is submitted is refused before anything of it is read, as far as that can be known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parallax_runner.actions.train import Train
from parallax_runner.config.compose import Composer
from parallax_runner.driver import submission
from parallax_runner.driver.check import validated
from parallax_runner.errors import LaunchError

COMMAND = "python -m parallax_runner hydra.run.dir=runs/one"
JOBS = {
    "slurm": ("cluster=slurm",),
    "kubernetes": ("cluster=kubernetes", "cluster.image=image:1", "cluster.volumes=[runs:/runs]"),
}


class Unread:
    """A source whose data is not to be read."""

    def load_dataset(self, config: object) -> None:
        """Fails."""
        raise AssertionError("the data was read")


def request_of(tmp_path: Path, cluster: str) -> Any:
    config = validated(Composer().job([*JOBS[cluster], "tracking=off"]))
    return SimpleNamespace(config=config, run_dir=tmp_path, source=Unread())


@pytest.mark.parametrize("cluster", JOBS)
def test_a_script_is_not_submitted(tmp_path: Path, cluster: str) -> None:
    with pytest.raises(LaunchError, match="a script or a job of a sweep is not submitted automatically"):
        Train().run(request_of(tmp_path, cluster))


def test_without_credentials_nothing_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "resume_command", lambda *_, **__: COMMAND)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(LaunchError, match="no credentials for a cluster"):
        Train().run(request_of(tmp_path, "kubernetes"))
