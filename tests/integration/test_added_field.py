"""Extensions in a copy of the project: a field of `comm` in two files, and an optimizer in two files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.integration.runs import launch

ROOT = Path(__file__).parents[2]
SCHEMA, CONSUMER = "parallax_runner/config/schema.py", "parallax_runner/driver/make_plan.py"
FIELD = """    # MiB of gradients that travel together.
    bucket_mib: int = field(default=64, metadata={"minimum": 1})
"""
READ = """    plan = dataclasses.replace(plan, notes=(*plan.notes, f"buckets of {config.comm.bucket_mib} MiB"))
"""
OPTIMIZER = '''
"""A gradient's sign, of a fixed size."""

import tensorflow.compat.v1 as tf


class SignOptimizer(tf.train.Optimizer):
    """One step moves each element by `learning_rate` against the sign of its gradient."""

    def __init__(self, learning_rate):
        super().__init__(use_locking=False, name="Sign")
        self.learning_rate = learning_rate

    def _apply_dense(self, grad, var):
        return tf.assign_sub(var, self.learning_rate * tf.sign(grad)).op

    _resource_apply_dense = _apply_dense
'''
CHOICE = """
_target_: models.sign.SignOptimizer
learning_rate: 0.1
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the project."""
    for folder in ("conf", "models", "parallax_runner"):
        shutil.copytree(ROOT / folder, tmp_path / "copy" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "copy"


def insert(path: Path, added: str, *, before: str) -> None:
    """Adds lines before a line that occurs once in the file."""
    text = path.read_text()
    assert text.count(before) == 1, before
    path.write_text(text.replace(before, added + before))


def test_a_field_of_comm_is_added_in_two_files(checkout: Path, tmp_path: Path) -> None:
    insert(checkout / SCHEMA, FIELD, before="    mpi: MpiConfig = field(")
    insert(
        checkout / CONSUMER,
        READ,
        before="    return explain(plan, request.variables, cost_model(request, constants))\n",
    )

    def plan(*more: str, name: str) -> tuple[int, str]:
        arguments = ("action=plan", "comm=mpi", "model=simple", "data=linear", "tracking=off", *more)
        run = launch(*arguments, cwd=tmp_path / name, python_path=checkout, is_forked=False)
        return run.exit_status, re.sub(r"\s+", " ", run.stdout + run.stderr)

    status, told = plan("comm.bucket_mib=8", name="given")
    assert (status, "note: buckets of 8 MiB" in told) == (0, True), told
    assert (
        "\ncomm.bucket_mib=8\n"
        in launch(
            *("--help", "comm", "comm=mpi", "comm.bucket_mib=8"),
            cwd=tmp_path / "help",
            python_path=checkout,
            is_forked=False,
        ).stdout
    )
    status, told = plan("comm.bucket_mib=many", name="refused")
    assert status == 2
    assert "comm.bucket_mib=many (command line): expected an integer, at least 1." in told


def test_an_optimizer_is_added_in_two_files(checkout: Path, tmp_path: Path) -> None:
    (checkout / "models" / "sign.py").write_text(OPTIMIZER)
    (checkout / "conf" / "optimizer" / "sign.yaml").write_text(CHOICE)
    run = launch(
        *("action=verify", "comm=mpi", "model=simple", "data=linear", "optimizer=sign", "train.steps=3"),
        "tracking=off",
        cwd=tmp_path,
        python_path=checkout,
        is_forked=False,
    ).expect_success()
    assert (run.summary["verified"], run.summary["steps"], run.summary["workers"]) == (True, 3, 2)
