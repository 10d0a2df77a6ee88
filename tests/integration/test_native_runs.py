"""Real runs with comm.backend=native: equal bits, and what is told of ranks that die, freeze or raise an error."""

from __future__ import annotations

import json
import re
import signal
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.checkpoints.checkpoint_files import list_checkpoints, step_of
from tests.integration.conftest import ENDLESS
from tests.integration.runs import Broken, Run, break_in, launch, started
from tests.integration.test_stalls import run_with

NATIVE = ("comm=sharded", "comm.backend=native", "tracking=off")
HANG_TIMEOUT_SECS = 8
END_SECS = 100
# On PYTHONPATH: the second step of rank 1 fails before TensorFlow runs, so this rank posts no exchange of it.
FAILS_BEFORE_ITS_STEP = """
import os

if os.environ.get("OMPI_COMM_WORLD_RANK") == "1":
    from parallax_runner.train.step_runner import StepRunner

    run_once = StepRunner._run_once

    def fail(self, fetches, feeds, step, *more):
        if step >= 1:
            raise ValueError("rank 1 leaves its step out")
        return run_once(self, fetches, feeds, step, *more)

    StepRunner._run_once = fail
"""


def variables(run: Run, step: int) -> dict[str, bytes]:
    reader = tf.train.load_checkpoint(str(run.ckpt_dir / f"model.ckpt-{step}"))
    return {name: np.asarray(reader.get_tensor(name)).tobytes() for name in reader.get_variable_to_shape_map()}


@pytest.mark.parametrize("comm", ["mpi", "sharded"])
def test_two_runs_of_three_ranks_have_equal_bits(comm: str, lm: tuple[str, ...], tmp_path: Path) -> None:
    overrides = (*lm, *NATIVE, f"comm={comm}", "cluster.workers=3", "train.steps=12", "ckpt.save_steps=12")
    runs = [launch(*overrides, cwd=tmp_path / name).expect_success() for name in ("first", "second")]
    first, second = (variables(run, 12) for run in runs)
    assert first == second
    assert len(first) > 3
    assert any(
        "tensors are exchanged by the native exchanges: comm.backend=native" in one for one in runs[0].plan["notes"]
    )


def test_two_runs_at_the_same_time_do_not_mix(lm: tuple[str, ...], tmp_path: Path) -> None:
    """Two launches on this host, with the same exchanges and other values, leave the bits that each leaves alone."""
    overrides = (*lm, *NATIVE, "train.steps=200", "ckpt.save_steps=200")
    seeds = ("1", "2")
    with ExitStack() as stack:
        both = [stack.enter_context(started(*overrides, f"train.seed={seed}", cwd=tmp_path / seed)) for seed in seeds]
        together = [variables(running.wait().expect_success(), 200) for running in both]
    alone = [
        variables(launch(*overrides, f"train.seed={seed}", cwd=tmp_path / f"{seed}_alone").expect_success(), 200)
        for seed in seeds
    ]
    assert together == alone
    assert together[0] != together[1]


def test_ranks_with_different_numbers_of_validation_batches_compute_what_one_process_computes(tmp_path: Path) -> None:
    """Seven batches for three ranks, the last one short, between steps whose votes save checkpoints."""
    model = ("model=dlrm_keras", "data.cardinalities=[20,30]", "data.dense_features=3", "data.examples=100")
    given = (*model, "data.validation_examples=50", "data.batch_size=8", "tracking=off")
    steps = ("cluster.workers=3", "train.steps=6", "train.validate_steps=2", "ckpt.save_steps=2", "ckpt.keep=6")
    trained = launch(*given, *NATIVE, *steps, cwd=tmp_path / "trained").expect_success()
    alone = launch(
        *given, "comm=local", "action=evaluate", f"ckpt.resume={trained.run_dir}", cwd=tmp_path / "alone"
    ).expect_success()
    expected = {name: value for name, value in alone.summary.items() if name.startswith("validation_")}
    assert {"validation_loss", "validation_auc"} <= set(expected)
    assert {name: trained.summary[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert [step_of(prefix) for prefix in list_checkpoints(trained.ckpt_dir)] == [2, 4, 6]


def test_a_killed_rank_ends_the_run_and_is_named(lm: tuple[str, ...], tmp_path: Path) -> None:
    with started(*lm, *NATIVE, *ENDLESS, cwd=tmp_path) as running:
        broken = break_in(running, lambda: running.member("worker", 1).kill())
    expect_end(broken)
    assert re.search(r"parallax_runner: worker 1\b.*SIGKILL", broken.run.stderr), broken.run.stderr


def test_a_run_goes_on_after_a_killed_rank(lm: tuple[str, ...], tmp_path: Path) -> None:
    overrides = (*lm, *NATIVE, "train.steps=3000", "train.log_every=20", "ckpt.save_steps=20", "train.max_restarts=1")
    with started(*overrides, cwd=tmp_path) as running:
        running.wait_for_checkpoints(1)
        running.member("worker", 1).kill()
        run = running.wait().expect_success()
    assert (run.summary["status"], run.summary["steps"], run.summary["restarts"]) == ("finished", 3000, 1)


def test_a_frozen_rank_ends_the_run_and_is_named(lm: tuple[str, ...], tmp_path: Path) -> None:
    overrides = (*lm, *NATIVE, *ENDLESS, f"train.hang_timeout_secs={HANG_TIMEOUT_SECS}")
    with started(*overrides, cwd=tmp_path) as running:
        broken = break_in(running, lambda: running.member("worker", 1).send_signal(signal.SIGSTOP))
    expect_end(broken)
    assert re.search(r"parallax_runner: worker 1 on \S+: frozen", broken.run.stderr), broken.run.stderr
    others = json.loads((broken.run.run_dir / "failure.json").read_text())["others"]
    assert [(one["role"], one["index"]) for one in others] == [("worker", 0)]


def test_a_rank_that_fails_before_any_exchange_of_its_step_ends_the_run(lm: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAILS_BEFORE_ITS_STEP)
    with started(*lm, *NATIVE, "train.steps=100000", cwd=tmp_path, python_path=tmp_path) as running:
        run = running.wait()
    assert run.exit_status == 1
    assert "rank 1 leaves its step out" in run.stderr
    assert "worker 1" in run.summary["error"]


def test_a_rank_that_begins_no_exchange_is_named_in_the_log_and_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the exchange. Rank 1 hangs in the model, before it computes a gradient."""
    run = run_with("hang", tmp_path, monkeypatch, "comm.backend=native", "train.stall_timeout_secs=45")
    assert (run.exit_status, run.summary["status"]) == (1, "failed")
    log = (run.run_dir / "logs" / "worker_0.log").read_text()
    in_log = re.search(r"rank 0 has waited 30 s for a sum «(\S+)»: nothing has come from rank 1\.", log)
    assert in_log is not None, log[-2000:]
    worker_1 = r"worker 1 is in step 20 \(pass_on in mymodel.py:\d+\)"
    waits = f"worker 0 is waiting for it in the exchange «{re.escape(in_log[1])}»"
    assert re.search(rf"no step for 3\d s; {worker_1}, {waits}", run.stderr), run.stderr
    reason = json.loads((run.run_dir / "failure.json").read_text())["first"]["reason"]
    assert re.match(rf"no step for 4\d s; {worker_1}, {waits} \(train.stall_timeout_secs=45\)", reason), reason
    assert "rank 1 has waited" not in (run.run_dir / "logs" / "worker_1.log").read_text()


def expect_end(broken: Broken) -> None:
    assert broken.secs < END_SECS
    assert broken.run.exit_status == 1
    assert broken.left == []
