"""How a call of `fit` begins in a folder that earlier calls and processes have used."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from parallax_runner.api import fit_result
from parallax_runner.api.fit_start import Call, is_finished, with_resume
from parallax_runner.checkpoints.checkpoint_files import Sidecar
from parallax_runner.checkpoints.publish import begin, publish
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.epoch_state import EpochState
from parallax_runner.errors import ConfigError

STEPS = 5


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return RunConfig(action="train", ckpt=dataclasses.replace(RunConfig().ckpt, resume="auto"))


def call(folder: Path, number: int = 1, *, first: int = 0, epochs: int = 2) -> Call:
    return Call(folder, number, first, epochs, STEPS)


def model(units: int = 1) -> keras.Model:
    made = keras.Sequential([keras.Input([2]), keras.layers.Dense(units, name="dense")], name="model")
    made.compile(keras.optimizers.SGD(name="sgd"), "mse")
    return made


def save(folder: Path, step: int, number: int = 1, *, first: int = 0, by_fit: bool = True) -> None:
    """Publishes an empty checkpoint of a call."""
    state = EpochState(0, first, STEPS, number, rates_before={}, callbacks={}).fields() if by_fit else None
    sidecar = Sidecar(step=step, examples=step, seed=1, fingerprint="f", tracker_run_id=None, epoch=state)
    written = begin(folder, step)
    written.with_name(f"{written.name}.index").touch()
    publish(written, folder, sidecar)


def leave(made: Call, trained: keras.Model, *callbacks: Any) -> None:
    history = keras.callbacks.History()
    history.history, history.epoch, history.params = {"loss": [1.0, np.zeros(2)]}, [0, 1], {"epochs": 2}
    fit_result.leave(made.stem, trained, history, callbacks, {**made.run, "steps": made.steps})


def resume_of(config: RunConfig, made: Call) -> str:
    return with_resume(config, made).ckpt.resume


def test_an_unused_folder(tmp_path: Path, config: RunConfig) -> None:
    assert not is_finished(call(tmp_path), config, model())
    assert resume_of(config, call(tmp_path)) == "auto"
    assert resume_of(config, call(tmp_path, 2)) == "auto"


def test_a_call_resumes_its_own_run_and_none_of_an_earlier_call(tmp_path: Path, config: RunConfig) -> None:
    save(tmp_path, 10)
    assert resume_of(config, call(tmp_path)) == "auto"
    assert resume_of(config, call(tmp_path, 2)) == "never"
    save(tmp_path, 3, 2)
    assert resume_of(config, call(tmp_path, 2)) == "auto"
    assert resume_of(config, call(tmp_path, 3)) == "never"


def test_a_checkpoint_of_an_older_version_belongs_to_the_first_call(tmp_path: Path, config: RunConfig) -> None:
    save(tmp_path, 10, by_fit=False)
    assert resume_of(config, call(tmp_path)) == "auto"
    assert resume_of(config, call(tmp_path, 2)) == "never"


def test_a_finished_call_returns_its_result(
    tmp_path: Path, config: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = keras.callbacks.EarlyStopping("loss")
    stop.stopped_epoch, stop.best = 4, 0.5
    trained, fresh = model(), model()
    trained.optimizer.learning_rate = 0.25
    save(tmp_path, 10)
    leave(call(tmp_path), trained, stop)
    assert is_finished(call(tmp_path), config, fresh)
    (line,) = capsys.readouterr().err.splitlines()
    assert f"fit returns the result of the finished run in {tmp_path} without training" in line
    other = keras.callbacks.EarlyStopping("loss")
    history, steps = fit_result.take_over(call(tmp_path).stem, fresh, [other])
    assert (history.history, history.epoch, steps) == ({"loss": [1.0, [0.0, 0.0]]}, [0, 1], 10)
    assert (other.stopped_epoch, other.best) == (4, 0.5)
    np.testing.assert_array_equal(fresh.get_weights()[0], trained.get_weights()[0])
    assert float(fresh.optimizer.learning_rate) == 0.25
    save(tmp_path, 3, 2)  # a second call has begun to train
    assert is_finished(call(tmp_path), config, fresh)
    assert not is_finished(call(tmp_path, 2), config, fresh)


@pytest.mark.parametrize(
    "changed", [{"epochs": 3}, {"first": 1}, {"number": 2}], ids=lambda changed: next(iter(changed))
)
def test_another_call_is_not_finished(tmp_path: Path, config: RunConfig, changed: dict[str, int]) -> None:
    save(tmp_path, 10)
    leave(call(tmp_path), model())
    assert not is_finished(call(tmp_path, **changed), config, model())  # type: ignore[arg-type]


def test_a_result_of_another_model_or_with_a_lost_file_is_none(tmp_path: Path, config: RunConfig) -> None:
    save(tmp_path, 10)
    leave(call(tmp_path), model())
    assert not is_finished(call(tmp_path), config, model(units=2))
    (tmp_path / "fit-1.npz").write_bytes(b"damaged")
    assert not is_finished(call(tmp_path), config, model())
    (tmp_path / "fit-1.npz").unlink()
    assert not is_finished(call(tmp_path), config, model())


@pytest.mark.parametrize("resume", ["never", "runs/other"])
def test_a_resume_that_the_user_has_set_is_kept(tmp_path: Path, config: RunConfig, resume: str) -> None:
    config = dataclasses.replace(config, ckpt=dataclasses.replace(config.ckpt, resume=resume))
    save(tmp_path, 10)
    leave(call(tmp_path), model())
    assert not is_finished(call(tmp_path), config, model())
    for number in (1, 2):
        assert resume_of(config, call(tmp_path, number)) == resume


def test_other_actions_return_no_result(tmp_path: Path, config: RunConfig) -> None:
    save(tmp_path, 10)
    leave(call(tmp_path), model())
    assert not is_finished(call(tmp_path), dataclasses.replace(config, action="verify"), model())


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"epochs": 1}, r"epochs=1 \(fit\): this is 5 steps, but the run in .* is already at step 7; choose another"),
        ({"first": 1, "epochs": 3}, r"initial_epoch=1 \(fit\): .* a run with initial_epoch=0; pass initial_epoch=0"),
    ],
)
def test_what_a_run_in_the_folder_cannot_continue_is_refused(
    tmp_path: Path, config: RunConfig, asked: dict[str, int], told: str
) -> None:
    save(tmp_path, 7)
    with pytest.raises(ConfigError, match=told):
        with_resume(config, call(tmp_path, **asked))  # type: ignore[arg-type]


def test_a_changed_call_before_a_later_one_is_refused(tmp_path: Path, config: RunConfig) -> None:
    save(tmp_path, 7, 2)
    with pytest.raises(ConfigError, match="belongs to call 2 of fit in this folder, but call 1 has other epochs"):
        with_resume(config, call(tmp_path))


def test_a_call_that_trains_forgets_its_result_and_later_ones(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        leave(call(tmp_path, number), model())
    (tmp_path / "fit-notes.json").touch()
    fit_result.forget(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fit-1.json", "fit-1.npz", "fit-notes.json"]
