"""An action from a package outside this repository: one module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.runs import launch

# docs/extending.md shows this module.
MODULE = '''
"""Prints how many weights each route of a plan has."""

from collections import Counter
from math import prod

from parallax_runner.actions.action import Action
from parallax_runner.config.explain import refusal
from parallax_runner.driver.planned_run import planned_run


class CountWeights(Action):
    """Plans the run, and starts nothing."""

    purpose = "count weights"

    def check(self, config, origins):
        if config.comm.name == "local":
            raise refusal("comm", origins, "with one process there is only one route", value="local")

    def run(self, request):
        weights = Counter()
        for variable in planned_run(request).plan.variables:
            weights[variable.route] += prod(variable.shape)
        for route, number in weights.most_common():
            print(f"{route}: {number} weights")
        request.state.finish(request.run_dir)
'''
EMPTY = """
from parallax_runner.actions.action import Action


class Nothing(Action):
    pass
"""
STEPS = '''
"""Trains with the product's processes, and adds a field to the summary of each rank."""

from parallax_runner.actions.runs_steps import RunsSteps


class Steps(RunsSteps):
    validates = False

    def work(self, rank):
        outcome = rank.train()
        print(f"rank {rank.loop.feed.rank} has trained {outcome['steps']} steps")
        return outcome

    def told_at_end(self, summary, run_dir):
        return f"done: {summary.steps} steps of {summary.action}"
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The files of the package's author."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "counting.py").write_text(MODULE)
    (package / "steps.py").write_text(STEPS)
    (package / "empty.py").write_text(EMPTY)
    return package


def test_it_runs(package: Path, tmp_path: Path) -> None:
    run = launch(
        "model=simple", "action=counting.CountWeights", "tracking=off", cwd=tmp_path, python_path=package
    ).expect_success()
    assert "allreduce: " in run.stdout and " weights" in run.stdout
    assert (run.summary["status"], run.summary["action"]) == ("finished", "counting.CountWeights")
    assert "starting" not in run.stderr


def test_what_it_refuses_is_refused_before_anything_starts(package: Path, tmp_path: Path) -> None:
    wanted = ("model=simple", "action=counting.CountWeights", "comm=local")
    run = launch(*wanted, cwd=tmp_path, python_path=package)
    assert run.exit_status == 2
    assert "comm=local (command line): with one process there is only one route" in run.stderr


def test_one_that_runs_steps_has_processes_and_a_record(package: Path, tmp_path: Path) -> None:
    wanted = ("model=simple", "action=steps.Steps", "train.steps=3", "simulate.latency_us=5")
    run = launch(*wanted, cwd=tmp_path, python_path=package).expect_success()
    assert "done: 3 steps of steps.Steps" in run.stderr
    unused = "this key has no effect, because action=steps.Steps does not simulate"
    assert f"simulate.latency_us=5 (command line): {unused}" in run.stderr
    for rank in range(2):
        assert f"rank {rank} has trained 3 steps" in (run.run_dir / "logs" / f"worker_{rank}.log").read_text()
    assert run.summary["mlflow_run_id"] is not None
    assert not list((run.run_dir / "ckpt").glob("*ckpt-*"))


def test_one_that_does_nothing_is_named(package: Path, tmp_path: Path) -> None:
    run = launch("model=simple", "action=empty.Nothing", "tracking=off", cwd=tmp_path, python_path=package)
    assert run.exit_status == 2 and "Traceback" not in run.stderr
    assert "action=empty.Nothing (command line): Nothing does not define the method «run»; define it" in run.stderr


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("counting.Count", "counting.Count cannot be imported"),
        ("counting.Counter", "expected a class that extends parallax_runner.actions.action.Action"),
        ("trian", "expected one of train, plan, verify, evaluate, predict, export, search, simulate, sync, or a class"),
    ],
)
def test_a_name_without_an_action(name: str, told: str, package: Path, tmp_path: Path) -> None:
    run = launch("model=simple", f"action={name}", cwd=tmp_path, python_path=package)
    assert run.exit_status == 2
    assert f"action={name} (command line): " in run.stderr and told in run.stderr
