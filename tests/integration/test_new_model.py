"""A user's own model: one function in one file, and one YAML file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.integration.runs import Run, launch

ROOT = Path(__file__).parents[2]
MODEL = '''
"""y = w x: a line through the origin."""

import tensorflow.compat.v1 as tf


def build(features, optimizer, *, start):
    w = tf.get_variable("slope", shape=[], initializer=tf.constant_initializer(start))
    loss = tf.reduce_mean(tf.square(w * features["x"] - features["y"]))
    return {"loss": loss, "train_op": optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())}
'''
CONFIG = """
_target_: {target}
start: 3.0
"""
ARGUMENTS = ("data=linear", "optimizer=gradient_descent", "train.steps=3", "tracking=off")


def test_in_a_checkout(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for folder in ("conf", "models", "parallax_runner"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (checkout / "models" / "tiny.py").write_text(MODEL)
    (checkout / "conf" / "model" / "tiny.yaml").write_text(CONFIG.format(target="models.tiny.build"))
    # From another folder, as with an activated environment of that checkout.
    elsewhere = tmp_path / "elsewhere"
    run = launch("model=tiny", "comm=mpi", *ARGUMENTS, cwd=elsewhere, python_path=checkout, is_forked=False)
    run.expect_success()
    assert run.summary["model"] == "models.tiny.build"
    assert [variable["name"] for variable in run.plan["variables"]] == ["slope", "global_step"]
    assert (run.summary["steps"], run.summary["workers"]) == (3, 2)


def test_beside_an_installed_package(tmp_path: Path) -> None:
    (tmp_path / "mymodel.py").write_text(MODEL)
    (tmp_path / "myconf" / "model").mkdir(parents=True)
    (tmp_path / "myconf" / "model" / "mine.yaml").write_text(CONFIG.format(target="mymodel.build"))
    arguments = ("--config-dir", "myconf", "model=mine", "model.start=4.0", "comm=local")
    run = launch(*arguments, *ARGUMENTS, cwd=tmp_path).expect_success()
    assert run.summary["model"] == "mymodel.build"
    assert yaml.safe_load((run.run_dir / "config.yaml").read_text())["model"]["start"] == 4.0
    assert run.summary["steps"] == 3


COUNTING = """
import tensorflow as tf


def make():
    slope, calls = tf.Variable(1.0, name="slope"), []

    def step(batch):
        calls.append(None)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(slope * batch["x"] - batch["y"]))
        slope.assign_sub(0.1 * tape.gradient(loss, slope) + len(calls))
        return loss

    return step
"""


def test_a_step_that_a_graph_cannot_repeat(tmp_path: Path) -> None:
    """The step counts its calls in Python, and a graph has the count of its only trace. No worker is started."""
    (tmp_path / "counting.py").write_text(COUNTING)
    (tmp_path / "myconf" / "model").mkdir(parents=True)
    (tmp_path / "myconf" / "model" / "counting.yaml").write_text("_target_: counting.make\n")
    arguments = ("--config-dir", "myconf", "model=counting", "comm=mpi", "action=verify", "data=linear", "tracking=off")
    run = launch(*arguments, "train.steps=3", cwd=tmp_path)
    assert run.exit_status == 1
    told = "the captured graph differs from the model's own step on one device in step 2: slope: differs by 1 ("
    assert f"parallax_runner: {told}" in run.stderr
    assert run.log_names() == {"driver.log"}
    assert (run.summary["status"], run.summary["untouched_verified"]) == ("failed", False)


def test_devices_that_it_names(tmp_path: Path) -> None:
    """An unknown device is reported at planning time; two halves on two devices of each worker equal one device."""
    scope = '    with tf.device("/cpu:1"):\n        error = w * features["x"] - features["y"]\n    loss = '
    line = '    loss = tf.reduce_mean(tf.square(w * features["x"] - features["y"]))\n'
    (tmp_path / "mymodel.py").write_text(MODEL.replace(line, scope + "tf.reduce_mean(tf.square(error))\n"))
    (tmp_path / "myconf" / "model").mkdir(parents=True)
    (tmp_path / "myconf" / "model" / "mine.yaml").write_text(CONFIG.format(target="mymodel.build"))
    arguments = ("--config-dir", "myconf", "model=mine", "comm=ps", "action=verify", *ARGUMENTS)
    refused = launch(*arguments, cwd=tmp_path)
    refused.expect_nothing_started()
    assert refused.exit_status == 2
    assert "is placed on /device:CPU:1, which does not exist: each worker has CPU:0 (" in refused.stderr
    proven = launch(*arguments, "cluster.cpu_devices=2", cwd=tmp_path).expect_success()
    assert "every variable matches the result on one device" in proven.stderr


def test_scopes_of_distributed_tensorflow(tmp_path: Path) -> None:
    """`replica_device_setter` for a cluster that does not exist, and a container, which the servers' variables are in
    too."""
    scopes = (
        '    setter = tf.train.replica_device_setter(3, worker_device="/job:worker/task:7")\n'
        '    with tf.device(setter), tf.container("experiment0"):\n'
        "        return build_in_scopes(features, optimizer, start)\n"
    )
    inner = "\n\ndef build_in_scopes(features, optimizer, start):\n"
    head, body = MODEL.split("start):\n")
    (tmp_path / "mymodel.py").write_text(f"{head}start):\n{scopes}{inner}{body}")
    (tmp_path / "myconf" / "model").mkdir(parents=True)
    (tmp_path / "myconf" / "model" / "mine.yaml").write_text(CONFIG.format(target="mymodel.build"))
    arguments = ("--config-dir", "myconf", "model=mine", "comm=ps", "action=verify", *ARGUMENTS)
    proven = launch(*arguments, cwd=tmp_path).expect_success()
    assert "every variable matches the result on one device" in proven.stderr
    assert {variable["route"] for variable in proven.plan["variables"] if variable["name"] == "slope"} == {"ps"}


def test_auto_with_a_server_that_it_names(tmp_path: Path) -> None:
    """The trial of one process has no servers, but the variable's route uses one."""
    line = '    w = tf.get_variable("slope"'
    scope = '    with tf.device("/job:ps/task:0"):\n        w = tf.get_variable("slope"'
    (tmp_path / "mymodel.py").write_text(MODEL.replace(line, scope))
    (tmp_path / "myconf" / "model").mkdir(parents=True)
    (tmp_path / "myconf" / "model" / "mine.yaml").write_text(CONFIG.format(target="mymodel.build"))
    arguments = ("--config-dir", "myconf", "model=mine", "comm=auto", "data.batch_size=48", *ARGUMENTS)
    run = launch(*arguments, cwd=tmp_path).expect_success()
    assert "a short trial" in run.stderr
    routes = {variable["name"]: variable["route"] for variable in run.plan["variables"]}
    assert routes["slope"] == "ps" and run.summary["steps"] == 3


def test_models_of_another_project_in_the_folder(tmp_path: Path) -> None:
    """A module named `models`, a folder without `__init__.py` with the user's own model, and one with it."""
    plan = ("action=plan", "comm=mpi", "data=linear", "optimizer=gradient_descent")
    (tmp_path / "module").mkdir()
    (tmp_path / "module" / "models.py").write_text("WHATEVER = 1\n")
    ours = launch("model=simple", *plan, cwd=tmp_path / "module").expect_success()
    assert variables(ours) == ["w", "b", "global_step"]
    for name, init in (("folder", False), ("package", True)):
        cwd = tmp_path / name
        (cwd / "models").mkdir(parents=True)
        (cwd / "models" / "mine.py").write_text(MODEL)
        if init:
            (cwd / "models" / "__init__.py").touch()
        (cwd / "myconf" / "model").mkdir(parents=True)
        (cwd / "myconf" / "model" / "mine.yaml").write_text(CONFIG.format(target="models.mine.build"))
        mine = launch("--config-dir", "myconf", "model=mine", *plan, cwd=cwd, name="mine").expect_success()
        assert variables(mine) == ["slope", "global_step"]
        ours = launch("model=simple", *plan, cwd=cwd, name="ours").expect_success()
        assert variables(ours) == ["w", "b", "global_step"]


def variables(run: Run) -> list[str]:
    return [variable["name"] for variable in run.plan["variables"]]


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("data._target_=mydata.laod", "ModuleNotFoundError: No module named 'mydata'"),
        ("model._target_=models.simple.biuld", "ModuleNotFoundError: No module named 'models.simple.biuld'"),
        (
            "optimizer._target_=tensorflow.compat.v1.train.Adan",
            "ModuleNotFoundError: No module named 'tensorflow.compat.v1.train",
        ),
    ],
)
def test_what_a_group_names_and_is_not_there(override: str, fault: str, tmp_path: Path) -> None:
    run = launch("model=simple", "comm=mpi", override, cwd=tmp_path)
    assert run.exit_status == 2
    assert f"parallax_runner: {override} (command line): cannot be imported: {fault}" in run.stderr
    assert "Traceback" not in run.stderr
    run.expect_nothing_started()


def test_a_script_is_not_started_by_hand(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    run = launch("model=script", "data=script", "model.path=train.py", "comm=mpi", cwd=tmp_path)
    assert run.exit_status == 2 and "Traceback" not in run.stderr
    assert "start the script itself" in run.stderr
    run.expect_nothing_started()
