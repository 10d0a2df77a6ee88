"""Which exit status a command ends with; what runs behind the configuration is replaced."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PROGRAM = """
import sys, types
import parallax_runner
from parallax_runner import errors
from parallax_runner.config.objective import PERPLEXITY, Objective
from parallax_runner.driver import sweep_goal

def objective(config):
    {body}
    return None

def drive(config):
    print("drive", config.comm.name, config.run_dir)
    found = objective(config)
    return Objective("perplexity", found) if isinstance(found, float) else found

pipeline = types.ModuleType("parallax_runner.driver.pipeline")
pipeline.drive = drive
import parallax_runner.driver
sys.modules["parallax_runner.driver.pipeline"] = parallax_runner.driver.pipeline = pipeline
sweep_goal.goal_before_jobs = lambda config: PERPLEXITY
from parallax_runner.__main__ import main
sys.exit(main())
"""


def run(body: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM.format(body=body), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


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
        pytest.param("raise errors.LaunchError('x')", 1, "parallax_runner: x\n", id="more-error of another status"),
        ("raise SystemExit(3)", 3, ""),
        pytest.param("raise SystemExit(0)", 0, "", id="more-exit of status 0"),
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
    result = run("return 0.0", "-m", "comm=mpi,ps", "train.seed=1,2", "tracking=off", cwd=tmp_path)
    assert result.returncode == 0
    assert len(re.findall("│ finished │", result.stderr)) == 4
    lines = [line.split(" ") for line in result.stdout.splitlines()]
    assert [comm for _, comm, _ in lines] == ["mpi", "mpi", "ps", "ps"]
    folders = [Path(run_dir) for _, _, run_dir in lines]
    names = ["comm-mpi+train.seed-1", "comm-mpi+train.seed-2", "comm-ps+train.seed-1", "comm-ps+train.seed-2"]
    assert [folder.name for folder in folders] == names
    assert len({folder.parent for folder in folders}) == 1


def test_failed_job_of_a_sweep_fails_the_sweep(tmp_path: Path) -> None:
    body = "if config.comm.name == 'mpi': raise errors.PlanError('not with mpi')"
    result = run(body, "-m", "comm=mpi,ps", "tracking=off", cwd=tmp_path)
    assert result.returncode == 2
    assert len(result.stdout.splitlines()) == 2, "the other job still runs"
    assert result.stderr.startswith("parallax_runner: not with mpi\n")
    assert "Traceback" not in result.stderr
    assert "1 of 2 jobs have not finished" in result.stderr


def test_batches_of_a_sweep_go_on_after_a_failure(tmp_path: Path) -> None:
    body = "if config.train.seed == 1: raise errors.LaunchError('rank 1 died')"
    arguments = ("-m", "train.seed=1,2,3", "tracking=off", "hydra.sweeper.max_batch_size=1")
    result = run(body, *arguments, cwd=tmp_path)
    assert result.returncode == 1
    assert len(result.stdout.splitlines()) == 3


@pytest.mark.parametrize("body", ["raise KeyboardInterrupt", "raise SystemExit(130)"])
def test_interrupted_job_ends_a_sweep(body: str, tmp_path: Path) -> None:
    result = run(body, "-m", "train.seed=1,2,3", "tracking=off", "--config-dir", str(tmp_path), cwd=tmp_path)
    assert result.returncode == 130
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr.count("not run") == 2
    assert "Traceback" not in result.stderr


def test_started_again_a_sweep_runs_what_is_missing(tmp_path: Path) -> None:
    body = "if config.train.seed == 2 and not {}: raise errors.LaunchError('x')\n    return config.train.seed * 1.0"
    arguments = ("-m", "train.seed=1,2,3", "tracking=off", "hydra.sweep.dir='a folder/s=1'")
    first = run(body.format(False), *arguments, cwd=tmp_path)
    assert (first.returncode, len(first.stdout.splitlines())) == (1, 3)
    command = shlex.split(first.stderr.splitlines()[-1])
    assert command == ["python", "-m", "parallax_runner", *arguments[:-1], f"hydra.sweep.dir='{tmp_path}/a folder/s=1'"]
    second = run(body.format(True), *command[3:], cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert len(second.stdout.splitlines()) == 1
    assert re.findall(r"│ +(\d) │ train.seed=(\d) │ finished", second.stderr) == [("1", "1"), ("2", "2"), ("3", "3")]


def test_nothing_runs_when_a_later_job_is_wrong(tmp_path: Path) -> None:
    result = run("return 0.0", "-m", "cluster.workers=2,1,0", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert not list(tmp_path.iterdir())


OPTUNA = ("-m", "hydra/sweeper=optuna", "hydra.sweeper.n_jobs=1", "hydra.sweeper.n_trials=6", "tracking=off")


def test_failed_trial_does_not_end_an_optuna_study(tmp_path: Path) -> None:
    body = "rate = config.optimizer['learning_rate']\n    if rate < 0.2: raise errors.LaunchError('x')\n    return rate"
    arguments = (*OPTUNA, "optimizer.learning_rate=choice(0.1,0.2,0.3)", "hydra.sweeper.sampler.seed=1")
    result = run(body, *arguments, "hydra.sweep.dir=s", cwd=tmp_path)
    assert result.returncode == 1
    assert re.search("│ optimizer.learning_rate=0.1 │ failed ", result.stderr)
    best = yaml.safe_load((tmp_path / "s" / "optimization_results.yaml").read_text())
    assert best["best_value"] == 0.2
    ledger = (tmp_path / "s" / "ledger.jsonl").read_text()
    assert ledger.count('"event": "finished"') == 2, "values that were drawn again are not run again"
    assert '"event": "skipped"' in ledger
    assert "Warning" not in result.stderr


def test_optuna_looks_in_the_direction_of_the_objective(tmp_path: Path) -> None:
    rates = "optimizer.learning_rate=interval(0.1,0.2)"
    for direction in ("maximize", "[minimize,maximize]"):
        result = run("", *OPTUNA, rates, f"hydra.sweeper.direction={direction}", cwd=tmp_path)
        assert (result.returncode, result.stdout) == (2, "")
        assert "hydra.sweeper.direction=" in result.stderr and "maximize" in result.stderr
        assert "expected minimize, the direction of the objective «perplexity»; omit this key" in result.stderr
    assert not list(tmp_path.iterdir())
    result = run("return 1.0", *OPTUNA, rates, "hydra.sweeper.direction=minimize", cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_optuna_never_prefers_a_job_that_is_measured_otherwise(tmp_path: Path) -> None:
    body = (
        "rate = config.optimizer['learning_rate']\n    return rate if rate > 0.1 else Objective('training loss', 0.001)"
    )
    arguments = (*OPTUNA, "optimizer.learning_rate=choice(0.1,0.2,0.3)", "hydra.sweeper.sampler.seed=3")
    result = run(body, *arguments, "hydra.sweep.dir=s", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (
        "its objective (training loss) cannot be compared with the objective of the first job (perplexity)"
        in result.stderr
    )
    assert "the jobs are not ranked" in result.stderr
    assert "perplexity (2 jobs), training loss (1 job)" in result.stderr
    best = yaml.safe_load((tmp_path / "s" / "optimization_results.yaml").read_text())
    assert best["best_value"] == 0.2


def test_optuna_needs_an_objective(tmp_path: Path) -> None:
    result = run("", *OPTUNA, "action=plan", "optimizer.learning_rate=interval(0.1,0.2)", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert "action=plan (command line)" in result.stderr


def test_interrupted_trial_ends_an_optuna_study(tmp_path: Path) -> None:
    result = run("raise SystemExit(143)", *OPTUNA, "optimizer.learning_rate=interval(0.1,0.2)", cwd=tmp_path)
    assert result.returncode == 143, result.stderr
    assert len(result.stdout.splitlines()) == 1
    assert "Traceback" not in result.stderr
