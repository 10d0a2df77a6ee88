"""A run that was stopped and resumed in a new process ends like one that was never stopped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.integration.runs import BATCH_SIZE, Run, launch

# Deterministic: stopped in the middle of an epoch.
EXAMPLES, BATCH, STOP, STEPS = 1000, 4, 300, 400
CONFIG = {
    "model": "_target_: tests.integration.resumable.build_deterministic",
    "data": f"{{_target_: tests.integration.resumable.load_rows, examples: {EXAMPLES}, seed: 3, batch_size: {BATCH}}}",
}
DETERMINISTIC = ("model=mine", "data=mine", "optimizer=adam", "train.log_every=20", "tracking=off")
ROOT = Path(__file__).parents[2]
MODES = {"local": 1, "mpi": 2, "hybrid": 2, "sharded": 2}


def variables(folder: Path, step: int) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(folder / f"model.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.parametrize("comm", MODES)
def test_a_model_without_random_ops(comm: str, tmp_path: Path) -> None:
    for group, text in CONFIG.items():
        (tmp_path / "conf" / group).mkdir(parents=True)
        (tmp_path / "conf" / group / "mine.yaml").write_text(text)

    def run(name: str, steps: int, *more: str) -> Run:
        arguments = ("--config-dir", str(tmp_path / "conf"), *DETERMINISTIC, f"comm={comm}", f"train.steps={steps}")
        return launch(*arguments, *more, cwd=tmp_path, name=name, python_path=ROOT).expect_success()

    whole = run("whole", STEPS, "ckpt.save_steps=100")
    if comm == "hybrid":
        routes = {one["route"] for one in whole.plan["variables"] if one["gradient"]}
        assert {"allreduce", "ps"} <= routes
        run("parts", STOP)
        resumed = run("parts", STEPS)
    else:
        resumed = run("parts", STEPS, f"ckpt.resume={whole.ckpt_dir / f'model.ckpt-{STOP}'}")
    position = whole.sidecar(STOP)["examples"]
    assert position == STOP * BATCH * MODES[comm]
    assert position % EXAMPLES != 0  # in the middle of an epoch
    assert (resumed.summary["first_step"], resumed.summary["steps"]) == (STOP, STEPS)
    assert f"model.ckpt-{STOP} at step {STOP}\n" in resumed.stderr.partition("resumed from ")[2]
    assert f"\nrestoring step {STOP}\n" in resumed.stderr
    assert resumed.sidecar(STEPS)["examples"] == whole.sidecar(STEPS)["examples"]
    expected, found = variables(whole.ckpt_dir, STEPS), variables(resumed.ckpt_dir, STEPS)
    assert {"table", "weights", "table/Adam", "weights/Adam_1", "beta1_power"} <= set(expected) == set(found)
    before = variables(whole.ckpt_dir, STOP)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-7, err_msg=name)
        assert not np.array_equal(before[name], value)
    late = {step: loss for step, loss in whole.losses().items() if step > STOP + 1}
    assert STEPS in late
    assert {step: loss for step, loss in resumed.losses().items() if step in late} == pytest.approx(late, rel=1e-3)
    for field in ("loss_last", "validation_loss"):
        assert resumed.summary[field] == pytest.approx(whole.summary[field], rel=1e-5)


@dataclass(frozen=True)
class Remembered:
    """The positions that a run's ranks were asked for, and the chief's draws and inputs in each step."""

    positions: dict[int, list[int]]
    drawn: np.ndarray
    read: np.ndarray


LM_STOP, LM_STEPS = 25, 40


def remembered(run: Run, log: Path, step: int) -> Remembered:
    values = variables(run.ckpt_dir, step)
    positions = {rank: [int(line) for line in (log / f"rank_{rank}.txt").read_text().split()] for rank in (0, 1)}
    return Remembered(positions, values["drawn"], values["read"])


@pytest.fixture(scope="module")
def lm_runs(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> tuple[Remembered, Remembered]:
    """The sampled language model under hybrid: 40 steps at once, and 25 and then 15."""
    cwd = tmp_path_factory.mktemp("lm_resume")

    def run(name: str, steps: int, log: str) -> Remembered:
        fixed = ("model._target_=tests.integration.resumable.build_remembering", f"+model.steps={LM_STEPS}")
        data = ("data._target_=tests.integration.resumable.load_logged", f"+data.log={cwd / log}")
        arguments = (*lm, *fixed, *data, "comm=hybrid", f"train.steps={steps}", "tracking=off")
        made = launch(*arguments, cwd=cwd, name=name, python_path=ROOT).expect_success()
        return remembered(made, cwd / log, steps)

    whole = run("whole", LM_STEPS, "whole_log")
    run("parts", LM_STOP, "parts_log")
    return whole, run("parts", LM_STEPS, "parts_log")


def test_no_example_is_repeated_or_left_out(lm_runs: tuple[Remembered, Remembered]) -> None:
    whole, parts = lm_runs
    np.testing.assert_array_equal(parts.read, whole.read)
    assert parts.positions == whole.positions
    both = sorted(whole.positions[0] + whole.positions[1])
    assert both == list(range(LM_STEPS * 2 * BATCH_SIZE))


def test_no_draw_is_repeated(lm_runs: tuple[Remembered, Remembered]) -> None:
    whole, parts = lm_runs
    np.testing.assert_array_equal(parts.drawn[:LM_STOP], whole.drawn[:LM_STOP])
    draws = [tuple(step) for step in parts.drawn]
    assert len(set(draws)) == LM_STEPS
    # The seed is the same, but the draws differ from all draws of the run that was not stopped.
    assert not set(draws[LM_STOP:]) & {tuple(step) for step in whole.drawn}
