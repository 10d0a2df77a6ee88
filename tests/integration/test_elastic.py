"""Runs whose workers are lost and come back: they go on with as many workers as there are."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow.compat.v1 as tf

from tests import forked
from tests.integration.elastic import CAPACITY, SCRIPT_IDS, build_constant, build_of_script, load, load_keyed
from tests.integration.growing_runs import by_key
from tests.integration.resumable import IDS, WIDTH
from tests.integration.runs import Run, Running, launch, started, started_script
from tests.integration.test_fit_as_keras import expect_equal
from tests.integration.test_fit_restarts import FLOAT32, expect_same_variables, train
from tests.integration.test_manual import StandBy, standing_by, wait_until

FIT = Path(__file__).parent / "scripts" / "train_killed.py"
FIT_EPOCHS = 40
SCRIPT = Path(__file__).parent / "scripts" / "train_resized.py"
ROOT = Path(__file__).parents[2]
STEP_EXAMPLES, STEPS, SAVE_STEPS = 12, 400, 10
MODELS = {
    "v1": "_target_: tests.integration.resumable.build_deterministic",
    "keras": "{_target_: tests.integration.elastic.make_keras, labels: y, learning_rate: 0.05}",
    "constant": "_target_: tests.integration.elastic.build_constant",
    "counting": "_target_: tests.integration.elastic.build_counting",
    "growing": "{_target_: tests.integration.elastic.make_growing, labels: y, learning_rate: 0.05}",
}
DATA = "{{_target_: tests.integration.elastic.{load}, seed: 3, batch_size: {batch_size}, fast: {fast}}}"
LOADS = {"growing": "load_keyed"}
FAST = ("train.log_every=50", "tracking=off", f"train.steps={STEPS}", f"ckpt.save_steps={SAVE_STEPS}")


def arguments(tmp_path: Path, model: str, batch_size: int) -> Sequence[str]:
    """Returns the arguments of a run whose steps are slow until the file `fast` exists."""
    data = DATA.format(load=LOADS.get(model, "load"), batch_size=batch_size, fast=tmp_path / "fast")
    texts = {"model": MODELS[model], "data": data}
    for group, text in texts.items():
        (tmp_path / "conf" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / group / "mine.yaml").write_text(text)
    return ("--config-dir", str(tmp_path / "conf"), "model=mine", "data=mine", *FAST)


def elastic(made: StandBy) -> Sequence[str]:
    cluster = ("cluster=manual", f"cluster.rendezvous={made.address}", "cluster.min_workers=1", "cluster.wait_secs=1")
    return (*cluster, "train.max_restarts=3")


@pytest.fixture
def at_folder(tmp_path: Path) -> Iterator[StandBy]:
    with standing_by(f"file://{tmp_path / 'meet'}", tmp_path / "logs", {}) as made:
        yield made


def variables(run: Run) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(run.ckpt_dir / f"model.ckpt-{STEPS}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.parametrize(
    ("model", "comm", "servers"),
    [
        ("v1", "sharded", 0),
        pytest.param("keras", "sharded", 0, id="more-keras"),
        pytest.param("v1", "hybrid", 1, id="more-hybrid"),
        pytest.param("v1", "mpi", 0, id="more-mpi"),
        pytest.param("v1", "ps", 1, id="more-ps"),
    ],
)
def test_three_two_three_workers_train_as_three(
    tmp_path: Path, at_folder: StandBy, model: str, comm: str, servers: int
) -> None:
    own = (*arguments(tmp_path, model, STEP_EXAMPLES // 3), f"comm={comm}", f"cluster.servers={servers}")
    for _ in range(servers):
        at_folder.start("server")
    whole, resized = whole_and_resized(tmp_path, at_folder, own)
    expect_equal_to(whole, resized)


def test_a_table_that_grows_has_the_same_keys_rows_and_slots(tmp_path: Path, at_folder: StandBy) -> None:
    """Keys are new before, while and after a worker is missing."""
    own = (*arguments(tmp_path, "growing", STEP_EXAMPLES // 3), "comm=sharded")
    whole, resized = whole_and_resized(tmp_path, at_folder, own)
    expected, found = variables(whole), variables(resized)
    assert set(found) == set(expected)
    tables = [name for name, value in expected.items() if value.shape == (CAPACITY, WIDTH)]
    assert len(tables) == 2, "the rows and a slot"
    for name in tables:
        by_expected_key, by_found_key = by_key(expected, "items", name), by_key(found, "items", name)
        assert set(by_found_key) == set(by_expected_key) == keys_until(STEPS)
        expect_values(by_found_key, by_expected_key)
    changes = [size["step"] for size in resized.summary["sizes"]]
    seen = [keys_until(step) for step in (*changes, STEPS)]
    assert all(before < after for before, after in itertools.pairwise(seen))


def keys_until(step: int) -> set[int]:
    """Returns the keys of the examples before a step."""
    batch = load_keyed(fast=os.devnull, seed=3).train_batch(0, step * STEP_EXAMPLES)
    return set(batch["ids"].ravel().tolist())


def whole_and_resized(tmp_path: Path, made: StandBy, own: Sequence[str]) -> tuple[Run, Run]:
    """Returns a run that always has three workers, and one that has three, then two, then three."""
    own = (*own, "cluster.workers=3")
    _, victim, _ = [made.start("worker") for _ in range(3)]
    with started(*own, *elastic(made), cwd=tmp_path / "resized", python_path=ROOT) as running:
        running.wait_for_checkpoints(2)
        victim.kill()
        running.wait_for_line("parallax_runner: the run continues from step [0-9]+ with 2 workers instead of 3")
        made.start("worker")
        running.wait_for_line("parallax_runner: the run continues from step [0-9]+ with 3 workers instead of 2")
        (tmp_path / "fast").touch()
        resized = running.wait().expect_success()
    whole = launch(*own, cwd=tmp_path / "whole", python_path=ROOT).expect_success()

    sizes = resized.summary["sizes"]
    assert [size["workers"] for size in sizes] == [3, 2, 3]
    assert 0 == sizes[0]["step"] < sizes[1]["step"] < sizes[2]["step"] < STEPS
    assert resized.summary["restarts"] == 1, "more workers are no failure"
    assert "sizes" not in whole.summary
    assert resized.plan["worker_numbers"] == [1, 2, 3]
    assert resized.sidecar(STEPS)["examples"] == whole.sidecar(STEPS)["examples"] == STEPS * STEP_EXAMPLES
    return whole, resized


@pytest.mark.parametrize("comm", ["hybrid", pytest.param("ps", id="more-server-of-ps")])
def test_a_run_goes_on_without_a_lost_server(tmp_path: Path, at_folder: StandBy, comm: str) -> None:
    own = (*arguments(tmp_path, "v1", STEP_EXAMPLES // 2), f"comm={comm}", "cluster.workers=2", "cluster.servers=2")
    victim, _ = [at_folder.start("server") for _ in range(2)]
    for _ in range(2):
        at_folder.start("worker")
    with started(*own, *elastic(at_folder), cwd=tmp_path / "resized", python_path=ROOT) as running:
        running.wait_for_checkpoints(2)
        victim.kill()
        running.wait_for_line(
            "parallax_runner: the run continues from step [0-9]+ with 2 workers and 1 server instead of 2"
        )
        at_folder.start("server")
        running.wait_for_line(
            "parallax_runner: the run continues from step [0-9]+ with 2 workers and 2 servers instead of 1"
        )
        (tmp_path / "fast").touch()
        resized = running.wait().expect_success()
    whole = launch(*own, cwd=tmp_path / "whole", python_path=ROOT).expect_success()
    assert [(size["workers"], size["servers"]) for size in resized.summary["sizes"]] == [(2, 2), (2, 1), (2, 2)]
    assert resized.summary["restarts"] == 1
    expect_equal_to(whole, resized)


def expect_equal_to(whole: Run, resized: Run) -> None:
    """Expects a run that was resized to equal a whole one to rounding, with its slots."""
    expected, found = variables(whole), variables(resized)
    assert any("dagrad" in name or "accumulator" in name for name in expected), "slots are compared, too"
    expect_values(found, expected)
    for field in ("loss_last", "validation_loss"):
        assert resized.summary[field] == pytest.approx(whole.summary[field], rel=1e-4)


def test_fit_has_the_history_of_keras_with_any_number_of_workers(tmp_path: Path, at_folder: StandBy) -> None:
    """Its epochs go on where they were, with the state of the callbacks and the sums of the metrics."""
    plain, _ = train(tmp_path, "plain", None, epochs=FIT_EPOCHS, slow_until=str(tmp_path))
    more = ["run_dir=run", "ckpt.save_steps=3", "train.log_every=5", *elastic(at_folder)]
    at_folder.python, at_folder.env = str(forked.STUB), forked.environment()
    asked = {"workers": 3, "epochs": FIT_EPOCHS, "slow_until": str(tmp_path / "fast"), "overrides": more}
    _, victim, _ = [at_folder.start("worker") for _ in range(3)]
    with ThreadPoolExecutor() as pool:
        training = pool.submit(train, tmp_path, "resized", "sharded", **asked)
        wait_until(lambda: training.done() or (tmp_path / "begin-2").exists())
        victim.kill()
        wait_until(lambda: training.done() or workers_in(tmp_path / "run") == 2)
        at_folder.start("worker")
        wait_until(lambda: training.done() or workers_in(tmp_path / "run") == 3)
        (tmp_path / "fast").touch()
        found, said = training.result()
    assert "with 2 workers instead of 3" in said and "with 3 workers instead of 2" in said
    expect_equal(found, plain, rel=FLOAT32)
    expect_same_variables(found, plain)


def workers_in(run_dir: Path) -> int:
    """Returns the number of workers in the newest plan of a run."""
    plan: dict[str, int] = json.loads((run_dir / "plan.json").read_text())
    return plan["workers"]


def lose_one_of_two(tmp_path: Path, made: StandBy, running: Running, victim: psutil.Process) -> Run:
    """Kills a worker of a run that has saved, and lets the run go on with one worker to its end."""
    running.wait_for_checkpoints(2)
    victim.kill()
    running.wait_for_line("parallax_runner: the run continues from step [0-9]+ with 1 worker instead of 2")
    (tmp_path / "fast").touch()
    run = running.wait().expect_success()
    assert [size["workers"] for size in run.summary["sizes"]] == [2, 1]
    return run


def test_a_rate_that_follows_the_number_of_workers_is_that_of_plain_tensorflow(
    tmp_path: Path, at_folder: StandBy
) -> None:
    """Two workers with six examples each, then one: half the examples in a step, and half the rate."""
    rate, examples = 0.02, STEP_EXAMPLES // 2
    own = (*arguments(tmp_path, "constant", examples), "comm=sharded", "cluster.workers=2")
    scaled = (
        *("optimizer=gradient_descent", f"optimizer.learning_rate={rate}"),
        *("train.on_resize=per_worker", "train.scale_lr=linear"),
    )
    _, victim = [at_folder.start("worker") for _ in range(2)]
    with started(*own, *scaled, *elastic(at_folder), cwd=tmp_path / "run", python_path=ROOT) as running:
        run = lose_one_of_two(tmp_path, at_folder, running, victim)
    resized_at = run.summary["sizes"][1]["step"]

    dataset = load(fast=str(tmp_path / "fast"), seed=3)
    with tf.Graph().as_default(), tf.Session() as session:
        fed_rate = tf.placeholder(tf.float32, [])
        features = {"ids": tf.placeholder(tf.int32, [None, IDS]), "y": tf.placeholder(tf.float32, [None])}
        built = build_constant(features, tf.train.GradientDescentOptimizer(fed_rate))
        session.run(tf.global_variables_initializer())
        position = 0
        for step in range(STEPS):
            workers = 2 if step < resized_at else 1
            batch = dataset.train_batch(position, workers * examples)
            position += workers * examples
            fed = {tensor: batch[name] for name, tensor in features.items()}
            session.run(built["train_op"], {**fed, fed_rate: rate * workers / 2})
        expected = {variable.op.name: session.run(variable) for variable in tf.global_variables()}
    assert run.sidecar(STEPS)["examples"] == position
    expect_values(variables(run), expected)


def test_a_rate_that_a_keras_model_has_is_not_scaled(tmp_path: Path) -> None:
    own = (*arguments(tmp_path, "keras", STEP_EXAMPLES // 2), "comm=sharded", "cluster.workers=2", "action=plan")
    cluster = ("cluster=manual", f"cluster.rendezvous=file://{tmp_path / 'meet'}", "cluster.min_workers=1")
    scaled = ("train.max_restarts=3", "train.on_resize=per_worker", "train.scale_lr=linear")
    run = launch(*own, *cluster, *scaled, cwd=tmp_path, python_path=ROOT)
    assert run.exit_status == 2
    assert (
        "train.scale_lr=linear (command line): the optimizer of a Keras model has its own learning rate" in run.stderr
    )


def test_a_script_goes_on_with_the_workers_that_are_there(tmp_path: Path, at_folder: StandBy) -> None:
    """Each worker feeds its own rows, so a step has fewer of them."""
    overrides = ["comm=hybrid", "cluster.workers=2", "cluster.servers=1", f"ckpt.save_steps={SAVE_STEPS}"]
    overrides += [*elastic(at_folder), "train.on_resize=per_worker"]
    asked = {"until": STEPS, "fast": str(tmp_path / "fast"), "overrides": overrides}
    at_folder.start("server")
    _, victim = [at_folder.start("worker") for _ in range(2)]
    with started_script(SCRIPT, json.dumps(asked), run_dir=tmp_path / "out", python_path=ROOT) as running:
        run = lose_one_of_two(tmp_path, at_folder, running, victim)
    resized_at = run.summary["sizes"][1]["step"]

    with tf.Graph().as_default(), tf.Session() as session:
        build_of_script()
        session.run(tf.global_variables_initializer())
        for step in range(STEPS):
            ids = [*SCRIPT_IDS[0], *(SCRIPT_IDS[1] if step < resized_at else [])]
            session.run("train", {"ids:0": ids})
        expected = {variable.op.name: session.run(variable) for variable in tf.global_variables()}
    expect_values(variables(run), expected)


def expect_values(found: Mapping[Any, np.ndarray], expected: Mapping[Any, np.ndarray]) -> None:
    """Expects the same values under each name or key."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=str(name))
