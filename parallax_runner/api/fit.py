"""`fit`: trains a compiled Keras model on many workers and loads the trained weights into it."""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from parallax_runner.api import earlier_calls, fit_result
from parallax_runner.api.callback_state import BestWeights
from parallax_runner.api.earlier_calls import EarlierCall, GivenData
from parallax_runner.api.fit_arguments import Arguments, check_arguments, check_metrics
from parallax_runner.api.fit_callbacks import FitCalls, reads_weights, usable
from parallax_runner.api.fit_data import dataset_of
from parallax_runner.api.fit_edge import in_users_process
from parallax_runner.api.fit_metrics import ValidationMetrics
from parallax_runner.api.fit_source import FitSource
from parallax_runner.api.fit_start import Call, is_finished, resume_epochs, with_resume
from parallax_runner.api.fit_validation import Schedule, ends_with_validation, epochs_between
from parallax_runner.api.overrides import value_of
from parallax_runner.api.own_groups import check_not_arguments, check_own_groups
from parallax_runner.api.script import started_as_if_possible
from parallax_runner.api.scripts_without_driver import cluster_lines, join_or_refuse
from parallax_runner.api.stopped_run import with_weights_of_stopped_run
from parallax_runner.config import frozen
from parallax_runner.config.actions import action_named, action_of, names_of_actions
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import validates_at_least
from parallax_runner.driver.epochs import Epochs
from parallax_runner.driver.only_driver import check_outside_workers
from parallax_runner.driver.resumable_epochs import ResumableEpochs
from parallax_runner.errors import ConfigError, LaunchError, Setting
from parallax_runner.export.keras_weights import load_into_keras
from parallax_runner.process.terminal import keep_going
from parallax_runner.worker.script import Worker, or_fail, this_worker, work_and_leave

if TYPE_CHECKING:
    from parallax_runner.config.compose import Job
    from parallax_runner.config.origins import Origins
    from parallax_runner.track.run_record import RunRecord


@in_users_process
def fit(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    workers: int | None = 2,
    comm: str = "hybrid",
    batch_size: int | None = None,
    epochs: int = 1,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_data: Any = None,
    validation_split: float = 0.0,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | list[int] = 1,
    validation_metrics: Sequence[str] = (),
    groups: str | None = None,
    verbose: int | str = "auto",
    callbacks: Sequence[Any] | Any | None = None,
    class_weight: dict[int, float] | None = None,
    sample_weight: Any = None,
    shuffle: bool = True,
    overrides: Sequence[str] = (),
) -> Any:
    """Trains like `model.fit`, but divides each batch equally among `workers` workers. Returns Keras' History.

    With `workers=None`, the cluster's hosts or the Slurm allocation determine the number of workers.

    `x` is a `tf.data.Dataset` of batches, or arrays with `y` and `batch_size` (32 if None). For arrays without
    `validation_data`, the fraction `validation_split` of the rows, taken from the end, is used for validation.
    `validation_freq` is the number of epochs per validation, or a list of the epochs (counted from 1) that end with a
    validation. A validation also computes `validation_metrics`, such as "gauc", whose names in the history begin with
    `val_`. `groups` is the key of x that has the group of each example; it need not be an input of the model.
    Each worker runs the script again up to this call and exits inside this call. When the call returns, the
    model has the trained weights and the optimizer has its final state. Callbacks are called in this process, between
    epochs. The terminal shows the plan and the progress of steps if `verbose` is 1 or "auto", one line per epoch if it
    is 2, and neither if it is 0. `overrides` are command-line overrides, such as "ckpt.save_steps=100". With an action
    other than "train", the call returns None and does not change the model.

    Raises ConfigError, DataError, CaptureError or PlanError for invalid arguments, and FitError if the run failed or
    was stopped. A stopped run leaves the model with the weights of its newest checkpoint. Raises LaunchError if the
    process already has a run, or if it belongs to a worker of a run.

    Ends the process here in a worker, in a surplus task of `srun`, and in a process with TF_CONFIG that is not rank 0:
    no exception, `finally` block or later line of the script runs there.
    """
    wanted = Arguments(
        model=model,
        epochs=epochs,
        initial_epoch=initial_epoch,
        validation_freq=validation_freq,
        validation_steps=validation_steps,
        validation_batch_size=validation_batch_size,
        metrics=ValidationMetrics(tuple(validation_metrics), groups),
        verbose=1 if verbose == "auto" else verbose,
        callbacks=_listed(callbacks),
        lines=[*([] if workers is None else [f"cluster.workers={value_of(workers)}"]), f"comm={comm}", *overrides],
    )
    worker, data = this_worker(), GivenData.of(x, validation_data)

    def source() -> FitSource:
        dataset = dataset_of(
            x,
            y,
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            validation_data=validation_data,
            validation_split=validation_split,
            validation_steps=validation_steps,
            validation_batch_size=validation_batch_size,
            class_weight=class_weight,
            sample_weight=sample_weight,
            shuffle=shuffle,
            is_exact=lambda: _is_exact(wanted, worker),
            pass_steps=None if worker is None else worker.config.data["pass_steps"],
        )
        schedule = Schedule(initial_epoch, validation_freq)
        return FitSource(model, dataset, earlier_calls.before(data), schedule, wanted.metrics)

    if worker is None:
        check_outside_workers("fit")
        earlier_calls.refuse_lost_results()
        check_arguments(wanted)
        check_own_groups(overrides, "fit", USABLE)
        join_or_refuse(lambda: _resolved(wanted).cluster, once=ONCE)
        made = source()
        with _keras_names_kept():
            return _drive(wanted, made, steps_per_epoch, data)
    if len(earlier_calls.finished) < len(worker.config.model.get("earlier", ())):
        with _keras_names_kept():
            return or_fail(worker, lambda: _as_before(worker, model, data))
    _work(worker, source)


def _keras_names_kept() -> AbstractContextManager[None]:
    """Restores Keras' numbering of layers and seeds after the `with` block. A capture begins both afresh, which must
    not change the names of the models that the script creates later."""
    from parallax_runner.graph.capture import keras_names_kept

    return keras_names_kept()


def _listed(callbacks: Sequence[Any] | Any | None) -> list[Any]:
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]


def _is_exact(wanted: Arguments, worker: Worker | None) -> bool:
    """Returns whether `data.resume` requires data whose order can be repeated."""
    if worker is not None:
        return bool(worker.config.data["resume"] != APPROXIMATE)
    return bool(_resolved(wanted).data.resume != APPROXIMATE)


def _resolved(wanted: Arguments) -> Any:
    """Returns the configuration of the run before the data is read, without the settings that depend on the data."""
    from parallax_runner.config.compose import resolve

    with _blamed_on_fit():
        return resolve(_composed(wanted, [f"model.epoch_steps={PLACEHOLDER}"]))


PLACEHOLDER = 1
ONCE = "start the script once, and pass the number of workers to fit"
APPROXIMATE = "approximate"
USABLE = (
    "data.cache_dir",
    "data.resume",
    "model.sparse_updates",
)  # the settings of `data` and `model` that overrides may contain
# Maps keys that `fit` computes to the arguments that it computes them from.
COMPUTED = {
    "train.steps": "epochs, initial_epoch and steps_per_epoch",
    "train.validate_steps": "validation_freq",
}


def start_it_plainly(*_: Any, **__: Any) -> NoReturn:
    """The target of `model=fit`, which works only through `fit`. Raises ConfigError."""
    raise ConfigError("the model comes from a script that calls fit").about(
        Setting("model", "fit"), remedy="start the script itself, as in `python train.py`"
    )


def _as_before(worker: Worker, model: Any, data: GivenData) -> Any:
    """In a worker of a later call, loads the result of an earlier call into the model. Returns the History."""
    return _as_finished(Path(worker.config.model["earlier"][len(earlier_calls.finished)]), model, data)


def _as_finished(stem: Path, model: Any, data: GivenData, callbacks: Sequence[Any] = ()) -> Any:
    """Loads the result of a finished call into the model and the callbacks. Returns the History."""
    history, steps = fit_result.take_over(stem, model, callbacks)
    earlier_calls.finished.append(EarlierCall.of(stem, data, steps, history))
    return history


def _work(worker: Worker, make_source: Callable[[], FitSource]) -> NoReturn:
    """Does this worker's part of the run, then ends the process."""
    if worker.session is not None:
        raise LaunchError("fit was called after parallel_run; call only one of them in a script")
    if worker.generators is not None:
        worker.generators.give_back()
    work_and_leave(worker, make_source)


def _drive(wanted: Arguments, source: FitSource, steps_per_epoch: int | None, data: GivenData) -> Any:
    from parallax_runner.config.running_job import job_of_call
    from parallax_runner.driver.pipeline import drive

    keep_going()
    model, dataset = source.model, source.dataset
    epoch_steps = steps_per_epoch or _epoch_steps(wanted, dataset)
    callbacks, notes = usable(wanted.callbacks)
    is_validated = validates_at_least(dataset, 1)
    check_metrics(wanted.metrics, is_validated=is_validated)
    saves_epochs = any(map(reads_weights, callbacks))
    config, origins = _config(wanted, dataset, epoch_steps, is_validated=is_validated, saves_epochs=saves_epochs)
    _print(notes)
    checkpoints = Path(config.ckpt.folder).resolve()
    call = Call(checkpoints, _next_number(checkpoints), wanted.initial_epoch, wanted.epochs, epoch_steps)
    if is_finished(call, config, model):
        return _as_finished(call.stem, model, data, callbacks)
    config = with_resume(config, call)
    made: list[tuple[FitCalls, RunRecord]] = []
    late_signals: list[int] = []

    def epochs(record: RunRecord, resumes_from: Path | None) -> Epochs:
        def validation_logs(epoch: int) -> dict[str, float]:
            if not is_validated or not ends_with_validation(epoch + 1, wanted.validation_freq):
                return {}
            return dict(record.last_validation_metrics)

        calls = FitCalls(
            model,
            callbacks,
            params={"epochs": wanted.epochs, "steps": epoch_steps, "verbose": wanted.verbose},
            logs=record.take_epoch,
            validation_logs=validation_logs,
            load=lambda: load_into_keras(model, checkpoints),
            best=BestWeights(checkpoints, call.stem.name),
        )
        made.append((calls, record))
        if frozen.keeps_epochs(config):
            fit_result.forget(checkpoints, call.number)
        made_epochs = ResumableEpochs(
            epoch_steps, calls, record.workers, wanted.initial_epoch, totals=record.totals, call=call.number
        )
        if resumes_from is not None:  # callbacks see the weights and the learning rate with which the workers begin
            load_into_keras(model, resumes_from)
            if frozen.keeps_epochs(config):
                resume_epochs(made_epochs, resumes_from, record.last_step)
        return made_epochs

    with job_of_call(origins), with_weights_of_stopped_run(model):
        drive(config, source, epochs, late_signals.append)
    if not made or not action_of(config).trains:  # planning and verifying produce no weights
        return None
    ((calls, record),) = made
    calls.finish()
    fault = fit_result.leave(call.stem, model, calls.history, callbacks, {**call.run, "steps": record.last_step})
    earlier_calls.finished.append(EarlierCall.of(call.stem, data, record.last_step, calls.history, fault))
    for number in late_signals:  # the training is complete, but the signal also asks the script to end
        signal.raise_signal(number)
    return calls.history


def _print(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"parallax_runner: {note}", file=sys.stderr)


def _next_number(checkpoints: Path) -> int:
    """Returns the number of the next call among the calls of this process with the same folder of checkpoints."""
    return 1 + sum(earlier.stem.parent == checkpoints for earlier in earlier_calls.finished)


def _check_action(job: Job) -> None:
    """Raises ConfigError for an action that `fit` does not support."""
    from parallax_runner.config.explain import refusal

    supported = [name for name in names_of_actions() if action_named(name).in_fit]
    try:
        is_supported = action_named(job.config.action).in_fit
    except LookupError:
        is_supported = False
    if not is_supported:
        raise refusal("action", job.origins, f"fit supports only {', '.join(supported)}")


def _epoch_steps(wanted: Arguments, dataset: Any) -> int:
    """Returns the number of steps in an epoch. A plan does not depend on it, so it does not read all examples."""
    if getattr(dataset, "is_counted_by_reading", False) and not action_of(_resolved(wanted)).runs_steps:
        return PLACEHOLDER
    return int(dataset.train_size // dataset.global_batch)


def _composed(wanted: Arguments, lines: Sequence[str]) -> Job:
    """Composes the configuration from `lines`, the overrides of the call, and the overrides that restart the script."""
    from parallax_runner.config.compose import Composer

    return Composer().job(["model=fit", *lines, *started_as_if_possible(), *wanted.lines, *cluster_lines()])


@contextmanager
def _blamed_on_fit() -> Iterator[None]:
    """Makes errors about overrides name `fit` instead of the command line. Within the block, Hydra has no state of the
    user's code."""
    from parallax_runner.config.hydra_state import own_hydra_state

    try:
        with own_hydra_state():
            yield
    except ConfigError as error:
        error.parts = error.parts.given_by("fit")
        raise


def _config(
    wanted: Arguments, dataset: Any, epoch_steps: int, *, is_validated: bool, saves_epochs: bool
) -> tuple[RunConfig, Origins]:
    """Composes the configuration of the run, and the origins of its settings. Raises ConfigError if the configuration
    is invalid or a batch cannot be divided equally."""
    from parallax_runner.config.cluster_size import size_cluster
    from parallax_runner.driver.batch_size import sizes_of
    from parallax_runner.driver.check import checked_job
    from parallax_runner.driver.own_optimizer import check_no_optimizer

    steps = (wanted.epochs - wanted.initial_epoch) * epoch_steps
    every = epoch_steps * epochs_between(wanted.validation_freq, wanted.initial_epoch, wanted.epochs)
    lines = [
        f"train.steps={steps}",
        f"model.epoch_steps={epoch_steps}",
        f"model.verbose={int(wanted.verbose)}",
        f"model.earlier={value_of([str(earlier.stem) for earlier in earlier_calls.finished])}",
        *([f"train.validate_steps={every}"] if is_validated and 0 < every < steps else []),
        f"model.saves_epochs={value_of(saves_epochs)}",
    ]
    with _blamed_on_fit():
        job = _composed(wanted, lines)
        _check_action(job)
        check_no_optimizer(job.origins, "fit trains a compiled keras.Model", "change model.compile(optimizer=…)")
        config = checked_job(job, "fit")
    check_not_arguments(wanted.lines, "fit", COMPUTED)
    if not config.ckpt.enabled:
        raise ConfigError("fit reads the trained weights from a checkpoint").about(
            Setting("ckpt", "off", where="fit"), remedy="remove this override"
        )
    sizes = sizes_of(size_cluster(config), dataset)
    pass_steps = getattr(dataset, "pass_steps", None) if action_of(config).runs_steps else None
    data = {**config.data, "pass_steps": pass_steps, **sizes}
    return dataclasses.replace(config, data=data), job.origins.given_by("fit")
