"""Which exit status a command ends with; what runs behind the configuration is replaced."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys, types
import parallax_runner
from parallax_runner import errors

def drive(config):
    print("drive", config.comm.name, config.run_dir)
    {body}

pipeline = types.ModuleType("parallax_runner.pipeline")
pipeline.drive = drive
sys.modules["parallax_runner.pipeline"] = parallax_runner.pipeline = pipeline
from parallax_runner.__main__ import main
sys.exit(main())
"""


def run(body: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM.format(body=body), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)


def test_success_is_silent(tmp_path: Path) -> None:
    result = run("return 1.5", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    (line,) = result.stdout.splitlines()
    word, comm, run_dir = line.split(" ")
    assert (word, comm) == ("drive", "hybrid")
    assert Path(run_dir).parent.parent == tmp_path / "outputs"
    assert list(Path(run_dir).iterdir()) == [], "Hydra leaves nothing of its own"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("raise errors.PlanError('too many pieces')", 2, "parallax_runner: too many pieces\n"),
        ("raise errors.LaunchError('rank 1 died')", 1, "parallax_runner: rank 1 died\n"),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit(0)", 0, ""),
        ("raise SystemExit('in words')", 1, "in words\n"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_status_of_a_job_survives(body: str, status: int, message: str, tmp_path: Path) -> None:
    result = run(body, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (status, message)


def test_unexpected_error_has_one_traceback(tmp_path: Path) -> None:
    result = run("raise RuntimeError('a bug')", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.count("Traceback") == 1
    assert result.stderr.endswith("RuntimeError: a bug\n")


def test_sweep_runs_every_job_in_its_own_folder(tmp_path: Path) -> None:
    result = run("return 0.0", "-m", "comm=mpi,ps", "train.seed=1,2", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    lines = [line.split(" ") for line in result.stdout.splitlines()]
    assert [comm for _, comm, _ in lines] == ["mpi", "mpi", "ps", "ps"]
    folders = [Path(run_dir) for _, _, run_dir in lines]
    assert [folder.name for folder in folders] == ["0", "1", "2", "3"]
    assert len({folder.parent for folder in folders}) == 1


def test_failed_job_of_a_sweep_fails_the_sweep(tmp_path: Path) -> None:
    body = "if config.comm.name == 'mpi': raise errors.PlanError('not with mpi')"
    result = run(body, "-m", "comm=mpi,ps", cwd=tmp_path)
    assert result.returncode == 2
    assert len(result.stdout.splitlines()) == 2, "the other job still runs"
    assert result.stderr.startswith("parallax_runner: not with mpi\n")
    assert "Traceback" not in result.stderr


def test_nothing_runs_when_a_later_job_is_wrong(tmp_path: Path) -> None:
    result = run("return 0.0", "-m", "cluster.workers=2,1,0", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert not list(tmp_path.iterdir())
