"""`fit`: trains a compiled Keras model on many workers and loads the trained weights into it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from parallax_runner.api import fit_result
from parallax_runner.api.fit_callbacks import FitCalls, rate_variable, reads_weights, usable
from parallax_runner.api.fit_data import dataset_of
from parallax_runner.api.fit_source import FitSource
from parallax_runner.api.one_by_one import cluster_lines
from parallax_runner.api.overrides import value_of
from parallax_runner.api.script import started_as
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.epochs import Epochs
from parallax_runner.errors import ConfigError, LaunchError
from parallax_runner.export.keras_weights import load_into_keras
from parallax_runner.process.terminal import keep_going
from parallax_runner.worker.script import Worker, this_worker


def fit(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    workers: int = 2,
    comm: str = "hybrid",
    batch_size: int | None = None,
    epochs: int = 1,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_data: Any = None,
    validation_split: float = 0.0,
    validation_freq: int = 1,
    callbacks: Sequence[Any] | Any = (),
    class_weight: dict[int, float] | None = None,
    sample_weight: Any = None,
    shuffle: bool = True,
    overrides: Sequence[str] = (),
) -> Any:
    """Trains like `model.fit`, but each batch is cut into `workers` equal parts. Returns Keras' History.

    `x` is a `tf.data.Dataset` of batches, or arrays with `y` and `batch_size` (32 if None). For arrays without
    `validation_data`, `validation_split` is the fraction of rows that are taken from the end for validation. Each
    worker runs the script again up to this call and exits inside this call. When the call returns, the model has the
    trained weights and the optimizer has its final state. Callbacks are called in this process, between epochs.
    `overrides` are command-line overrides, such as "ckpt.save_steps=100". With an action other than "train", the model
    does not change and None is returned.

    Raises ConfigError, DataError, CaptureError or PlanError for invalid arguments, and SystemExit with the run's exit
    status if the run failed or was stopped.
    """
    wanted = _Wanted(
        model=model,
        epochs=epochs,
        initial_epoch=initial_epoch,
        validation_freq=validation_freq,
        callbacks=callbacks if isinstance(callbacks, list | tuple) else [callbacks],
        lines=[f"cluster.workers={value_of(workers)}", f"comm={comm}", *overrides],
    )
    _check(wanted)
    worker = this_worker()
    if worker is not None and len(_finished) < len(worker.config.model.get("earlier", ())):
        return _as_before(worker, model)
    dataset = dataset_of(
        x,
        y,
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        validation_data=validation_data,
        validation_split=validation_split,
        class_weight=class_weight,
        sample_weight=sample_weight,
        shuffle=shuffle,
        exact="data.resume=approximate" not in overrides,
        known={} if worker is None else _known(worker.config.data),
    )
    source = FitSource(model, dataset, steps_before=sum(earlier.steps for earlier in _finished))
    if worker is not None:
        _work(worker, source)
    return _drive(wanted, source, steps_per_epoch or dataset.train_size // dataset.global_batch)


def _known(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: data[name] for name in COUNTED}


# Names of the counts that the first process passes to workers, which then do not have to count again.
COUNTED = ("pass_steps", "validation_size")


@dataclass(frozen=True)
class _Finished:
    """An earlier call in this process: its run folder, and the number of its steps."""

    run_dir: Path
    steps: int

    @classmethod
    def of(cls, run_dir: Path, history: Any) -> _Finished:
        return cls(run_dir, len(history.epoch) * history.params["steps"])


_finished: list[_Finished] = []


@dataclass(frozen=True)
class _Wanted:
    model: Any
    epochs: int
    initial_epoch: int
    validation_freq: int
    callbacks: Sequence[Any]
    lines: list[str] = field(default_factory=list)


def start_it_plainly(*_: Any, **__: Any) -> NoReturn:
    """The target of `model=fit`, which works only through `fit`. Raises ConfigError."""
    raise ConfigError(
        "model=fit: the model comes from a script that calls fit; start the script itself, as in `python train.py`"
    )


def _check(wanted: _Wanted) -> None:
    model = wanted.model
    for name in ("epochs", "validation_freq"):
        if not isinstance(getattr(wanted, name), int) or getattr(wanted, name) < 1:
            raise ConfigError(f"{name}={getattr(wanted, name)!r} (fit): expected an integer, at least 1")
    if not 0 <= wanted.initial_epoch < wanted.epochs:
        raise ConfigError(
            f"initial_epoch={wanted.initial_epoch} (fit): expected 0 to {wanted.epochs - 1}, because "
            f"epochs={wanted.epochs} is the number of the last epoch"
        )
    if not getattr(model, "compiled", False):
        raise ConfigError("fit trains a compiled keras.Model; call model.compile(optimizer=…, loss=…) first")


def _as_before(worker: Worker, model: Any) -> Any:
    """Loads the result of an earlier call into the model and returns its History again, in a worker of a later call."""
    run_dir = Path(worker.config.model["earlier"][len(_finished)])
    history = fit_result.take_over(run_dir, model)
    _finished.append(_Finished.of(run_dir, history))
    return history


@dataclass
class _Trained:
    """Takes the place of a script's session after the training (worker/script.py)."""

    plan: Any
    last_words: dict[str, Any]

    @property
    def runner(self) -> _Trained:
        """This object, which also provides the outcome."""
        return self

    @property
    def step(self) -> int:
        """The number of completed steps."""
        return int(self.last_words["steps"])

    def outcome(self) -> dict[str, Any]:
        """Returns the fields of the summary that describe the steps."""
        return self.last_words

    def close(self) -> None:
        """Does nothing, since nothing is open."""

    def give_up(self) -> None:
        """Does nothing, since nothing is open."""


def _work(worker: Worker, source: FitSource) -> NoReturn:
    """Does this worker's part of the run, then exits the process."""
    from parallax_runner.plan import plan as plans

    if worker.session is not None:
        raise LaunchError("fit was called again after its run had ended")
    if worker.generators is not None:
        worker.generators.give_back()
    outcome = worker.work(worker.run_dir, worker.rank, worker.client, source)
    worker.session = _Trained(plans.load(worker.run_dir / plans.FILE_NAME), outcome)
    raise SystemExit(0)


def _drive(wanted: _Wanted, source: FitSource, epoch_steps: int) -> Any:
    from parallax_runner.driver.pipeline import drive

    keep_going()
    model, dataset = source.model, source.dataset
    callbacks, notes = usable(wanted.callbacks)
    for note in (*notes, *getattr(dataset, "notes", ())):
        print(f"parallax_runner: {note}", file=sys.stderr)
    config = _config(wanted, dataset, epoch_steps, saves_epochs=any(map(reads_weights, callbacks)))
    run_dir, checkpoints = Path(config.run_dir).resolve(), Path(config.ckpt.folder).resolve()
    made: list[FitCalls] = []

    def epochs(record: Any) -> Epochs:
        def logs(epoch: int) -> dict[str, float]:
            is_validated = dataset.validation_size and (epoch + 1) % wanted.validation_freq == 0
            validation = record.last_validation_metrics if is_validated else {}
            return {**record.take_epoch(), **{f"val_{name}": value for name, value in validation.items()}}

        params = {"epochs": wanted.epochs, "steps": epoch_steps, "verbose": 0}
        calls = FitCalls(model, callbacks, params=params, logs=logs, load=lambda: _load(model, checkpoints))
        made.append(calls)
        return Epochs(epoch_steps, calls, record.workers, wanted.initial_epoch)

    drive(config, source, epochs)
    if not made or config.action != "train":  # planning and verifying produce no weights
        return None
    (calls,) = made
    _load(model, checkpoints)
    calls.finish()
    fit_result.leave(run_dir, model, calls.history)
    _finished.append(_Finished.of(run_dir, calls.history))
    return calls.history


def _load(model: Any, checkpoints: Path) -> None:
    load_into_keras(model, checkpoints)


def _config(wanted: _Wanted, dataset: Any, epoch_steps: int, *, saves_epochs: bool) -> RunConfig:
    """Composes the configuration of the run. Raises ConfigError if the configuration is invalid or a batch cannot be
    cut into equal parts."""
    from parallax_runner.config.cluster_size import size_cluster
    from parallax_runner.config.compose import Composer
    from parallax_runner.driver.check import checked_job

    steps = (wanted.epochs - wanted.initial_epoch) * epoch_steps
    every = epoch_steps * wanted.validation_freq
    lines = [
        "model=fit",
        f"train.steps={steps}",
        f"model.epoch_steps={epoch_steps}",
        f"model.learning_rate={value_of(rate_variable(wanted.model))}",
        f"model.earlier={value_of([str(earlier.run_dir) for earlier in _finished])}",
        *([f"train.validate_steps={every}"] if dataset.validation_size and every < steps else []),
        *([f"ckpt.save_steps={epoch_steps}"] if saves_epochs else []),
        *started_as("fit"),
        *wanted.lines,
        *cluster_lines(),
    ]
    try:
        config = checked_job(Composer().job(lines), "fit")
    except ConfigError as error:
        raise ConfigError(str(error).replace("(command line)", "(fit)")) from error
    if not config.ckpt.enabled:
        raise ConfigError("ckpt=off (fit): fit reads the trained weights from a checkpoint; remove this override")
    cluster = size_cluster(config).cluster
    parts = 1 if config.comm.name == "local" else cluster.workers * cluster.replicas_per_worker
    if dataset.global_batch % parts:
        raise ConfigError(
            f"a batch of {dataset.global_batch} examples cannot be divided into {parts} equal parts, one for each "
            f"replica; choose a batch of {max(1, dataset.global_batch // parts) * parts} or another number of workers"
        )
    counted = {name: getattr(dataset, name, None) for name in COUNTED}
    return dataclasses.replace(config, data={**config.data, **counted, "batch_size": dataset.global_batch // parts})
