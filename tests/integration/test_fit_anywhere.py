"""`fit` where there is no script, or none that workers could run again, and the errors that leave it."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from tests.integration.programs import (
    CALLED,
    EPOCH_STEPS,
    EPOCHS,
    FORKED,
    MODEL,
    SHOWN,
    Ended,
    environment,
    notebook,
    run,
    run_script,
    start,
)

NOT_A_NUMBER = "x + numpy.nan"


@pytest.fixture(scope="module")
def losses() -> list[float]:
    """The losses of two epochs in plain Keras."""
    own: dict[str, Any] = {}
    exec(MODEL, own)
    history = own["model"].fit(own["x"], own["y"], batch_size=8, shuffle=False, epochs=EPOCHS, verbose=0)
    return history.history["loss"]


def expect_losses(printed: str, losses: list[float]) -> None:
    """Checks that the last line of a program is the list of losses."""
    np.testing.assert_allclose(json.loads(printed.splitlines()[-1]), losses, rtol=1e-4)


def expect_one_message(ended: Ended, status: int, message: str, called: str) -> None:
    """Checks the end of a program by an error of fit: one message, the user's line, and no traceback."""
    ended.expect(status)
    assert "Traceback" not in ended.stderr
    assert len(re.findall(message, ended.stderr)) == 1, ended.stderr
    assert ended.stderr.rstrip().splitlines()[-1].endswith(called), ended.stderr


def test_a_program_from_standard_input(tmp_path: Path, losses: list[float]) -> None:
    ended = run("-", cwd=tmp_path, text=FORKED + MODEL + "print(fit().history['loss'])").expect()
    expect_losses(ended.stdout, losses)


def test_a_program_on_the_command_line(tmp_path: Path) -> None:
    """An error has the exit status and the message that it has on the command line."""
    refused = run("-c", FORKED + MODEL + "fit(overrides=['comm.syncs=false'])", cwd=tmp_path)
    expect_one_message(refused, 2, r"parallax_runner: comm.syncs=false \(fit\)", f"at <string>:{CALLED}")


def test_data_that_cannot_travel_needs_a_script(tmp_path: Path) -> None:
    text = """
import tensorflow as tf

spec = tf.TensorSpec([8, 2]), tf.TensorSpec([8, 1])
data = tf.data.Dataset.from_generator(lambda: iter([(x[:8], y[:8])] * 4), output_signature=spec)
parallax_runner.fit(model, data, steps_per_epoch=4, overrides=["tracking=off", "data.resume=approximate"])
"""
    refused = run("-", cwd=tmp_path, text=FORKED + MODEL + text)
    expect_one_message(refused, 1, "each worker must run the script up to fit, but this is a notebook", "at <stdin>:24")
    assert not list(tmp_path.rglob("worker_*.log"))


def test_a_thread_and_a_second_fit_beside_it(tmp_path: Path, losses: list[float]) -> None:
    """The main thread calls fit while the run of the other thread lasts."""
    ended = run_script(
        """
import threading

begun, refused = threading.Event(), threading.Event()


def wait(epoch, logs):
    begun.set()
    refused.wait(60)


def train():
    global history
    history = fit(callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=wait)])


thread = threading.Thread(target=train, name="training")
thread.start()
begun.wait(120)
try:
    fit()
except parallax_runner.errors.LaunchError as error:
    print(error)
refused.set()
thread.join()
print(history.history["loss"])
""",
        cwd=tmp_path,
    ).expect()
    told = "fit was called in the thread 'MainThread' while fit still runs in the thread 'training'"
    assert ended.stdout.startswith(told) and ended.stdout.count("\n") == 2
    expect_losses(ended.stdout, losses)


CHILDREN = """
import concurrent.futures
import multiprocessing


def train():
    import training

    return training.fit().history["loss"]


def train_nothing():
    import training

    training.fit(epochs=0)


if __name__ == "__main__":  # which multiprocessing itself needs
    for method, function in (("fork", train), ("spawn", train_nothing), ("spawn", train)):
        context = multiprocessing.get_context(method)
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            future = pool.submit(function)
            error = future.exception()
            print(future.result() if error is None else (type(error).__name__, error.exit_status))
"""


def test_child_processes(tmp_path: Path, losses: list[float]) -> None:
    """Forked and spawned children train. An error reaches the process that waits for it."""
    (tmp_path / "training.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(CHILDREN)
    ended = run("train.py", cwd=tmp_path).expect()
    of_fork, refused, of_spawn = ended.stdout.splitlines()
    assert refused == "('ConfigError', 2)"
    expect_losses(of_fork, losses)
    expect_losses(of_spawn, losses)


TESTS = """

def test_trains():
    assert len(fit().epoch) == 2
    with open("losses", "w") as file:
        print(model.history.history["loss"], file=file)


def test_is_refused():
    fit(epochs=0)


def test_fails():
    fit({not_a_number})
"""


def test_pytest(tmp_path: Path, losses: list[float]) -> None:
    """A test that fails shows its own lines and the message."""
    (tmp_path / "test_model.py").write_text(FORKED + MODEL + TESTS.format(not_a_number=NOT_A_NUMBER))
    ended = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_model.py", cwd=tmp_path).expect(1)
    expect_losses((tmp_path / "losses").read_text(), losses)
    failures = ended.stdout.partition("= FAILURES =")[2]
    assert "E       parallax_runner.errors.ConfigError: epochs=0 (fit): expected" in failures
    assert "E       parallax_runner.errors.FitError: worker" in failures
    assert set(re.findall(r"^(\S+\.py):\d+:", failures, re.M)) == {"test_model.py"}
    assert "2 failed, 1 passed" in ended.stdout


def test_a_notebook_from_its_file(tmp_path: Path, losses: list[float]) -> None:
    """Two calls, then a verification, in a notebook that nbclient runs as from a file. The second call imports a module
    first, and draws its initial values without a seed."""
    cells = [
        FORKED + MODEL,
        "print(fit(verbose=0).history['loss'])",
        "import colorsys\n"
        "model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, kernel_initializer='random_normal')])\n"
        "model.compile('adam', 'mse')\n"
        "print(fit(verbose=0).epoch, int(model.optimizer.iterations.numpy()))",
        "print(fit(overrides=['action=verify']))",
        "fit(epochs=0)",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    resources = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(book, timeout=240, allow_errors=True, resources=resources)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**environment(), "IPYTHONDIR": str(tmp_path)}.items():
            patch.setenv(name, value)
        client.execute()
    shown = [cell.outputs for cell in book.cells]
    assert not [output for outputs in shown[:4] for output in outputs if output.output_type == "error"], shown
    texts = ["".join(output.text for output in outputs if output.output_type == "stream") for outputs in shown]
    expect_losses(texts[1], losses)
    assert texts[2] == f"{list(range(EPOCHS))} {EPOCHS * EPOCH_STEPS}\n"
    assert "verified: after 8 steps, every variable matches the result on one device" in texts[3]
    (error,) = shown[4]
    told = "epochs=0 (fit): expected an integer, at least 1"
    assert (error.ename, error.evalue) == ("ConfigError", told)
    assert re.fullmatch(rf"ConfigError: {re.escape(told)}\n    at \S+:{CALLED} \(.*\)", "\n".join(error.traceback))


STOP_AFTER_EPOCH = "keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: setattr(model, 'stop_training', True))"


def test_ctrl_c_in_a_notebook(tmp_path: Path) -> None:
    """The cell ends with FitError, and the model has the weights of the checkpoint. Further cells go on: in the same
    folder from the checkpoint, and otherwise from the weights."""
    with notebook(tmp_path) as book:
        book.run(FORKED + MODEL)
        stopped = book.run("fit(epochs=100_000, overrides=['run_dir=run'])", interrupt_at="step ")
        assert stopped.error is not None, stopped
        assert stopped.error[0] == "FitError" and "SIGINT stopped the run; its newest checkpoint is" in stopped.error[1]
        assert stopped.error[2].count("\n") == 1 and "parallax_runner/" not in stopped.error[2]
        state = book.run(
            "import sys, tensorflow\n"
            "error = sys.last_value\n"
            "saved = tensorflow.train.load_checkpoint(error.ckpt_path)\n"
            "same = all((saved.get_tensor(each.path) == each.numpy()).all() for each in model.variables)\n"
            "print([error.status, error.exit_status, same, int(model.optimizer.iterations.numpy())])"
        )
        status, exit_status, is_same, steps = eval(state.stdout)
        assert (status, exit_status, is_same) == ("interrupted", 130, True) and steps > 0
        resumed = book.run(
            f"history = fit(epochs=100_000, overrides=['run_dir=run'], callbacks=[{STOP_AFTER_EPOCH}])\n"
            "print([len(history.epoch), int(model.optimizer.iterations.numpy())])"
        )
        assert f"at step {steps}" in resumed.stderr, resumed
        epochs, steps_after = eval(resumed.stdout)
        assert steps <= steps_after == epochs * EPOCH_STEPS <= steps + 2 * EPOCH_STEPS
        further = book.run("fit()\nprint(int(model.optimizer.iterations.numpy()))")
        assert int(further.stdout) == steps_after + EPOCHS * EPOCH_STEPS, further


def test_a_script_catches_the_error_of_a_run(tmp_path: Path, losses: list[float]) -> None:
    """The process is as before, also after the run that succeeds. The last error is not caught."""
    ended = run_script(
        f"""
import logging
import os
import sys
import threading
import warnings

import mlflow  # configures its loggers

logging.getLogger("parallax_runner").addHandler(logging.NullHandler())


def state():
    names = ["root", "parallax_runner", "mlflow", "urllib3"]
    loggers = [logging.getLogger(name) for name in names]
    return {{
        "loggers": [(each.level, each.propagate, list(each.handlers)) for each in loggers],
        "streams": (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__),
        "hooks": (sys.excepthook, threading.excepthook),
        "folder": os.getcwd(),
        "variables": dict(os.environ),
        "warnings": list(warnings.filters),
    }}


def changed():
    return [name for name, value in state().items() if value != before[name]]


before = state()
try:
    fit({NOT_A_NUMBER}, overrides=["run_dir=failed", "tracking=mlflow"])
except parallax_runner.FitError as error:
    print(error.status, error.exit_status, os.path.relpath(error.run_dir), error.ckpt_path)
print(changed())
loss = fit().history["loss"]
print(changed())
print(loss, flush=True)
fit({NOT_A_NUMBER})
""",
        cwd=tmp_path,
    )
    assert ended.stdout.splitlines()[:3] == ["failed 1 failed None", "[]", "[]"], ended
    message = r"parallax_runner: worker \d+ .*the loss of step 1 is nan"
    ended.expect(1)
    assert len(re.findall(message, ended.stderr)) == 2 and "Traceback" not in ended.stderr, ended.stderr
    assert ended.stderr.rstrip().endswith(f"train.py:{CALLED} {SHOWN}"), ended.stderr


def test_a_thread_does_not_swallow_the_error(tmp_path: Path) -> None:
    """The main thread goes on after the message."""
    ended = run_script(
        """
import threading

thread = threading.Thread(target=fit, kwargs={"epochs": 0})
thread.start()
thread.join()
print("goes on")
""",
        cwd=tmp_path,
    )
    assert ended.stdout == "goes on\n"
    expect_one_message(ended, 0, r"parallax_runner: epochs=0 \(fit\)", "")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_script_has_the_status_of_the_signal(number: signal.Signals, status: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FORKED + MODEL + "fit(epochs=100_000, overrides=['run_dir=run'])\n")
    with start(["train.py"], cwd=tmp_path) as process:
        assert process.stderr is not None
        shown = ""
        while "step " not in shown:
            shown += process.stderr.readline()
            assert process.poll() is None, shown
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=120)
    ended = Ended(process.returncode, stdout, stderr)
    expect_one_message(ended, status, "parallax_runner: interrupted; ", f"train.py:{CALLED} {SHOWN}")


def test_a_script_that_uses_hydra(tmp_path: Path) -> None:
    """The state of a Hydra application and of an initialized Hydra is as before, after a plan and after an error."""
    ended = run_script(
        """
from dataclasses import dataclass

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

OmegaConf.register_new_resolver("mine", lambda: 5)


@dataclass
class Settings:
    epochs: int = 3
    mine: int = "${mine:}"


ConfigStore.instance().store(name="config", node=Settings)


def plan_and_fail():
    fit(overrides=["action=plan"])
    try:
        fit(epochs=0)
    except parallax_runner.errors.ConfigError as error:
        print(error)


@hydra.main(version_base=None, config_name="config")
def main(config):
    plan_and_fail()
    job = HydraConfig.get().job
    print(job.name, job.config_name, config.mine, GlobalHydra.instance().is_initialized())


main()
with hydra.initialize(version_base="1.1"):
    plan_and_fail()
    composed = hydra.compose("config", overrides=["epochs=4"])
    print(composed.epochs, composed.mine, GlobalHydra.instance().is_initialized())
""",
        cwd=tmp_path,
    ).expect()
    told = [line for line in ended.stdout.splitlines() if not line.startswith("epochs=0 (fit)")]
    assert told == ["train config 5 True", "4 5 True"]
    assert ended.stdout.count("epochs=0 (fit)") == 2
