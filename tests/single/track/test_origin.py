"""Where a run comes from: the commit, the command, the user."""

from __future__ import annotations

import getpass
import subprocess
from pathlib import Path

import pytest

from parallax_runner import __version__
from parallax_runner.track import origin
from parallax_runner.track.origin import Program, command_line, git_tags, origin_of, program, program_in


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false"]
    told = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return told.stdout.strip()


def test_the_commit_and_whether_files_were_changed(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "folder").mkdir()
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    expected = {"git.commit": git(tmp_path, "rev-parse", "HEAD"), "git.dirty": "false"}
    (tmp_path / "mlflow.db").touch()  # what git does not know is no change
    assert git_tags(tmp_path / "folder") == expected
    (tmp_path / "a.py").write_text("2")
    assert git_tags(tmp_path) == expected | {"git.dirty": "true"}


def test_outside_a_repository_there_is_no_commit(tmp_path: Path) -> None:
    assert git_tags(tmp_path) == {}


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_tags(Path(__file__).parent) == {}


def test_the_command_line_can_be_typed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/x/__main__.py", "comm=mpi", "+tracking.tags.note=two words"])
    assert command_line() == "python -m parallax_runner comm=mpi '+tracking.tags.note=two words'"


def test_the_command_line_of_a_sweep_is_the_one_that_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    added = ["hydra.sweep.dir=/x/y", "hydra.job.config.override_dirname.exclude_keys=[train.steps]"]
    monkeypatch.setattr("sys.argv", ["/x/__main__.py", "-m", "comm=mpi,ps", "train.steps=5", *added])
    assert command_line() == "python -m parallax_runner -m comm=mpi,ps train.steps=5"


def test_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert origin_of(tmp_path)["user"] == getpass.getuser()

    def no_name() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(origin.getpass, "getuser", no_name)
    assert origin_of(tmp_path)["user"] == "unknown"


def test_the_program_has_the_commit_of_its_own_checkout(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert program_in(tmp_path) == Program(__version__, commit)
    assert str(program_in(tmp_path)) == f"parallax_runner {__version__}, commit {commit}"
    (tmp_path / "a.py").write_text("2")
    assert program_in(tmp_path).tags() == {"parallax.version": __version__, "parallax.commit": f"{commit}-dirty"}


def test_an_installed_program_has_no_commit(tmp_path: Path) -> None:
    """The environment may lie in the checkout of a project that uses this one."""
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    (tmp_path / "site-packages").mkdir()
    assert program_in(tmp_path / "site-packages") == Program(__version__, None)
    assert program_in(tmp_path / "site-packages").tags() == {"parallax.version": __version__}
    assert str(program_in(tmp_path / "site-packages")) == f"parallax_runner {__version__}"


def test_the_program_is_part_of_the_origin(tmp_path: Path) -> None:
    assert origin_of(tmp_path).items() >= program().tags().items()
