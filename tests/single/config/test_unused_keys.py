"""Keys that the chosen mode has no use for: accepted, as a sweep over modes needs it, and named in one line."""

from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser

from parallax_runner.driver.check import check


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def notes(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    check(get_args_parser().parse_args(list(arguments)))
    return capsys.readouterr().err.splitlines()


SERVERS = "cluster.servers=2 (command line): this key has no effect, because comm=mpi has no servers."
WORKERS = "cluster.workers=4 (command line): this key has no effect, because comm=local uses one process."


def test_a_key_without_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert notes(capsys, "comm=mpi", "cluster.servers=2") == [f"parallax_runner: {SERVERS}"]
    assert notes(capsys, "comm=local", "cluster.workers=4") == [f"parallax_runner: {WORKERS}"]
    assert len(notes(capsys, "comm=local", "cluster.workers=4", "cluster.servers=2")) == 2


def test_a_sweep_names_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    told = notes(capsys, "-m", "comm=hybrid,mpi,sharded,local", "cluster.servers=2", "cluster.workers=4")
    both = "cluster.servers=2 cluster.workers=4"
    assert told == [
        f"parallax_runner: job 1 (comm=mpi {both}): {SERVERS}",
        f"parallax_runner: job 3 (comm=local {both}): {WORKERS}",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("comm=hybrid", "cluster.servers=2"),
        ("comm=auto", "cluster.servers=2"),
        ("comm=ps", "cluster.servers=2", "cluster.workers=4"),
        ("comm=mpi", "cluster.servers=0", "cluster.workers=4"),
        ("comm=local", "cluster.workers=1"),
        ("comm=local",),
    ],
)
def test_nothing_is_said_of_what_is_used(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert notes(capsys, *arguments) == []
