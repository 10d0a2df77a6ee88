"""Actions other than training: plans, verification, and refusals that need the graph."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.runs import BATCH_SIZE, VOCAB_SIZE, Run, launch

# Imported by every process with its folder on PYTHONPATH: doubles the sums of the first gradient.
WRONG_SUMS = """
import importlib.abc
import importlib.machinery
import sys

NAME = "parallax_runner.collectives.ops"


class Spoiler(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != NAME:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            right = module.sum_over_ranks

            def sum_over_ranks(tensors, *, name):
                first, *others = right(tensors, name=name)
                return [first * 2, *others]

            module.sum_over_ranks = sum_over_ranks

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Spoiler())
"""


@pytest.fixture(scope="module")
def planned(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Run:
    overrides = ("action=plan", "comm=hybrid", "profile=steps", "profile.steps=[1]")
    return launch(*lm, *overrides, cwd=tmp_path_factory.mktemp("planned")).expect_success()


def rows_of(table: str) -> dict[str, list[str]]:
    """Returns the cells of the printed table by the variable's name."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if line.startswith("│")]
    return {row[0]: row[1:] for row in cells}


def test_plan_prints_a_table(planned: Run) -> None:
    plan, _, costs = (planned.stdout + planned.stderr).partition("cost of each route")
    assert "constants: defaults" in costs and "upper bounds from shapes" in costs
    rows = rows_of(plan)
    assert set(rows) == {
        *("embedding", "lstm/kernel", "lstm/bias", "lstm/projection", "softmax_w", "softmax_b", "global_step", "all")
    }
    # Shape, size, gradient, route, partitions, place, rows written, bytes. Bytes are 2 (N - 1) / N of the gradient for
    # an allreduce. For a variable on a server they are 4 examples of 5 words, each with a row of 8 float32 there and
    # back, plus ids.
    assert rows["lstm/kernel"] == ["16×32", "2.05 kB", "dense", "allreduce", "1", "every rank", "all", "2.05 kB"]
    assert rows["embedding"][:7] == ["200×8", "6.4 kB", "sparse", "ps", "1", "server 0", "touched"]
    assert re.fullmatch(r"≤ 1\.\d+ kB", rows["embedding"][7])


def test_plan_ends_with_advice(planned: Run) -> None:
    told = " ".join((planned.stdout + planned.stderr).partition("\nadvice: ")[2].split())
    assert told.startswith("comm=auto would choose ") and "softmax_w" in told and " ms, " in told


def test_plan_writes_plan_and_summary(planned: Run) -> None:
    variables = {variable["name"]: variable for variable in planned.plan["variables"]}
    assert variables["embedding"]["route"] == "ps"
    assert variables["lstm/kernel"]["route"] == "allreduce"
    assert variables["lstm/kernel"]["sent_bytes_per_step"] == 16 * 32 * 4
    summary = planned.summary
    assert (summary["status"], summary["action"], summary["error"]) == ("finished", "plan", None)
    assert (summary["workers"], summary["servers"], summary["global_batch"]) == (2, 1, 2 * BATCH_SIZE)


def test_plan_starts_nothing(planned: Run) -> None:
    planned.expect_nothing_started()
    assert "profile=steps (command line): this choice has no effect" in planned.stderr
    assert not (planned.run_dir / "profile").exists()
    assert not planned.ckpt_dir.exists()
    assert not (planned.run_dir.parent / "mlflow.db").exists()


def test_no_variable_has_more_partitions_than_rows(lm: tuple[str, ...], tmp_path: Path) -> None:
    """partition.num is a cap."""
    number = VOCAB_SIZE + 1
    run = launch(*lm, "partition=fixed", f"partition.num={number}", "action=plan", "tracking=off", cwd=tmp_path)
    run.expect_success()
    assert max(len(variable["shards"]) for variable in run.plan["variables"]) == VOCAB_SIZE
    run.expect_nothing_started()


def test_an_optimizer_beside_a_keras_model_is_refused(tmp_path: Path) -> None:
    """Even the default one, if somebody asks for it; see tests/single/driver/test_own_optimizer.py."""
    run = launch("model=two_tower", "optimizer=adagrad", "action=plan", "tracking=off", cwd=tmp_path)
    assert run.exit_status == 2
    (message,) = [line for line in run.stderr.splitlines() if line.startswith("parallax_runner: ")]
    assert message.startswith("parallax_runner: optimizer=adagrad (command line): model._target_=models.two_tower.")
    run.expect_nothing_started()


def test_hybrid_without_sparse_variables_starts_no_server(simple_hybrid: Run) -> None:
    assert "no sparse variable: hybrid is the same as mpi, and no server is started" in simple_hybrid.stderr
    assert (simple_hybrid.plan["servers"], simple_hybrid.summary["servers"]) == (0, 0)
    assert simple_hybrid.log_names() >= {"driver.log", "worker_0.log", "worker_1.log"}
    assert not any(name.startswith("server") for name in simple_hybrid.log_names())


def test_verify_proves_a_right_run(lm: tuple[str, ...], tmp_path: Path) -> None:
    run = launch(*lm, "action=verify", "comm=hybrid", "train.steps=3", "tracking=off", cwd=tmp_path).expect_success()
    assert "verified: after 3 steps, every variable matches the result on one device" in run.stderr
    assert (run.summary["status"], run.summary["action"], run.summary["steps"]) == ("finished", "verify", 3)


def test_verify_tells_what_it_has_repeated_and_refuses_to_repeat_nothing(lm: tuple[str, ...], tmp_path: Path) -> None:
    arguments = (*lm, "comm=hybrid", "tracking=off")
    trained = launch(*arguments, "train.steps=2", cwd=tmp_path).expect_success()
    run = launch(*arguments, "action=verify", "train.steps=5", cwd=tmp_path).expect_success()
    assert "verified: after 3 steps from step 2, every variable matches the result on one device" in run.stderr
    refused = launch(*arguments, "action=verify", "train.steps=2", cwd=tmp_path)
    assert refused.exit_status == 2
    has = f"{trained.ckpt_dir / 'model.ckpt-2'} is at step 2, so train.steps=2 leaves no steps to verify"
    has = f"action=verify (command line): {has}"
    assert f"{has}; set train.steps=12 or ckpt.resume=never" in refused.stderr
    assert "verified" not in refused.summary and refused.summary["status"] == "failed"


@pytest.fixture(scope="module")
def refuted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One step of the linear regression with a doubled gradient of its first variable."""
    cwd = tmp_path_factory.mktemp("refuted")
    (cwd / "shim").mkdir()
    (cwd / "shim" / "sitecustomize.py").write_text(WRONG_SUMS)
    arguments = ("model=simple", "action=verify", "comm=mpi", "train.steps=1", "tracking=off")
    return launch(*arguments, cwd=cwd, python_path=cwd / "shim", is_forked=False)


def test_verify_names_what_differs_and_by_how_much(refuted: Run) -> None:
    assert refuted.exit_status == 1
    message = re.search(
        r"the result differs from training on one device: (\w+): differs by (\S+) .*: (\S+), expected ([^\s;]+)",
        refuted.stderr,
        re.I,
    )
    assert message, refuted.stderr
    assert message[1] == "w"
    actual, expected = float(message[3]), float(message[4])
    # From 0, one step with the doubled gradient goes twice as far.
    assert actual == pytest.approx(2 * expected, rel=1e-5)
    assert float(message[2]) == pytest.approx(abs(expected), rel=1e-2)


def test_a_refuted_run_does_not_count_as_finished(refuted: Run) -> None:
    assert refuted.summary["status"] == "failed"
    assert "w" in refuted.summary["error"]


def test_a_plan_names_a_loss_that_is_not_a_mean_over_the_batch(tmp_path: Path) -> None:
    """Its negatives are the other examples of the batch."""
    small = ("data.queries=60", "data.items=40", "data.examples=100", "data.validation_examples=0")
    run = launch("experiment=two_tower", *small, "action=plan", "tracking=off", cwd=tmp_path).expect_success()
    assert "parallax_runner: the loss of the training step is neither a mean nor a sum over examples (" in run.stderr
    assert "Each of the 2 replicas computes it for its own examples" in run.stderr
