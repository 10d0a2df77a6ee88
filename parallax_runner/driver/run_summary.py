"""`summary.json` as an object, built from the reports of a run's ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parallax_runner.config.actions import action_named
from parallax_runner.config.frozen import SCRIPT
from parallax_runner.config.objective import TRAINING_LOSS, Direction, Objective
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.trackers import RUN_ID_KEY
from parallax_runner.data.shares import step_examples_of
from parallax_runner.driver.partition_results import SearchSummary
from parallax_runner.track.origin import program
from parallax_runner.track.run_record import RunRecord, counts_of, histogram_of
from parallax_runner.track.tracker import Status
from parallax_runner.verify.compare import PART_STEPS

# Fields of the chief's last message that have the same names in the summary.
OF_CHIEF = ("steps", "skipped_steps", "steps_per_sec", "step_ms_p50", "step_ms_p90", "ckpt_path")


@dataclass(frozen=True)
class ExportSummary:
    """The folder of the exported SavedModel, or the reason why there is none."""

    saved_model: str | None
    saved_model_error: str | None


@dataclass(frozen=True)
class ObjectiveSummary:
    """The metric that is used to compare the run with others, its value, and whether the metric is maximized or
    minimized."""

    objective: str
    objective_value: float | None
    objective_direction: Direction


@dataclass(frozen=True)
class KerasSummary:
    """The `.keras` file of a Keras model, or the reason why there is no such file."""

    keras_model: str | None
    keras_model_error: str | None


@dataclass(frozen=True)
class UntouchedSummary:
    """The first part of action=verify: whether the captured graph equals the model's own training step on one device,
    and the largest difference. Both are None if the part was left out, and `untouched_left_out` is then the reason. A
    difference that is not finite is stored as text."""

    untouched_verified: bool | None
    untouched_max_difference: float | str | None
    untouched_left_out: str | None


@dataclass(frozen=True)
class VerifySummary:
    """The result of action=verify. A difference that is not finite is stored as text. `max_difference` is None if the
    ranks were not compared.

    `differ_unmerged` contains the variables that stock TensorFlow and Keras update differently if a batch repeats an
    id.
    """

    verified: bool
    max_difference: float | str | None
    differ_unmerged: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunSummary:
    """All fields of `summary.json` (docs/concepts.md, «What a run leaves behind»), in the order of the file. In the
    file, nested parts are flattened: their fields appear at the top level. A field that is `optional` and None is
    omitted, and a field with a `key` has another name in the file.

    `version` and `commit` identify this program. `observed` contains the staleness histogram and the counts of dropped
    gradients. `unknown_loss` is the reason why the losses are unknown. `training` contains the metrics of the last
    training steps, and `validation` the results of the last validation, which are named after the part of the data that
    it read. `data_wait_share` is the share of the time of the steps in which the workers waited for their next batches,
    None for a script, which feeds its own data. `sizes` has the number of `workers` from each `step` on at which this
    number changed.
    """

    status: Status
    action: str
    comm: str
    model: str
    workers: int
    servers: int = 0
    steps: int = 0
    first_step: int = 0
    restarts: int = 0
    global_batch: int | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    unknown_loss: str | None = field(default=None, metadata={"optional": True})
    steps_per_sec: float | None = None
    examples_per_sec: float | None = None
    words_per_sec: float | None = None
    step_ms_p50: float | None = None
    step_ms_p90: float | None = None
    data_wait_share: float | None = None
    sent_bytes_per_step: float | None = None
    startup_secs: float | None = None
    tracker_run_id: str | None = field(default=None, metadata={"key": RUN_ID_KEY})
    ckpt_path: str | None = None
    error: str | None = None
    version: str | None = None
    commit: str | None = None
    sizes: tuple[Mapping[str, int], ...] | None = field(default=None, metadata={"optional": True})
    search: SearchSummary | None = field(default=None, metadata={"optional": True})
    skipped_steps: int | None = field(default=None, metadata={"optional": True})
    export: ExportSummary | None = field(default=None, metadata={"optional": True})
    keras: KerasSummary | None = field(default=None, metadata={"optional": True})
    observed: Mapping[str, float | None] = field(default_factory=dict)
    training: Mapping[str, float | None] = field(default_factory=dict)
    validation: Mapping[str, float | None] = field(default_factory=dict)
    compared: ObjectiveSummary | None = field(default=None, metadata={"optional": True})
    untouched: UntouchedSummary | None = field(default=None, metadata={"optional": True})
    verification: VerifySummary | None = field(default=None, metadata={"optional": True})

    @property
    def objective(self) -> Objective:
        """The metric that is used to compare the run with others. If there is no other metric, this is the training
        loss."""
        found = self.compared
        if found is None:
            return Objective(TRAINING_LOSS.name, self.loss_last, TRAINING_LOSS.direction)
        return Objective(found.objective, found.objective_value, found.objective_direction)

    @classmethod
    def begun(cls, config: RunConfig) -> RunSummary:
        """Returns the summary of a run that has just begun."""
        return cls(
            status="failed",
            action=config.action,
            comm=config.comm.name,
            model=config.model["_target_"],
            workers=config.cluster.workers,
            global_batch=global_batch(config, config.cluster.workers),
            version=program().version,
            commit=program().commit,
        )

    def flat(self) -> dict[str, Any]:
        """Returns the fields as they are written to the file."""
        return _flat(self)


def global_batch(config: RunConfig, contributors: int) -> int | None:
    """Returns the number of examples in a step of `contributors` replicas. Returns None for a script, because the
    number of examples that a script feeds is not in the configuration, and before the batch size is known."""
    batch_size = config.data.get("batch_size")
    if config.model["_target_"] == SCRIPT or batch_size is None:
        return None
    return step_examples_of(config, contributors)


def with_training(
    summary: RunSummary, record: RunRecord, done: Mapping[int, Mapping[str, Any]], before: Mapping[str, Any]
) -> RunSummary:
    """Returns the summary with the results of training, from the run's record and the ranks' last messages (`done`, by
    rank). `before` is the summary of an earlier run in the same folder."""
    chief = done.get(0, {})
    steps = chief.get("steps", record.last_step)
    loss_first, loss_last = _losses(record, steps, before)
    observed = histogram_of(record.staleness)
    if record.contributors is not None:
        observed |= counts_of(record.dropped, record.workers)
    rates = record.rates(chief.get("steps_per_sec"))
    summary = dataclasses.replace(
        summary,
        **{"steps": steps} | {key: chief[key] for key in OF_CHIEF if key in chief},
        examples_per_sec=rates["examples_per_sec"],
        words_per_sec=rates["words_per_sec"],
        global_batch=record.global_batch,
        loss_first=loss_first,
        loss_last=loss_last,
        unknown_loss=record.unknown_loss,
        startup_secs=record.startup_secs,
        data_wait_share=_mean_over_ranks(done, "data_wait_share"),
        sent_bytes_per_step=_mean_over_ranks(done, "sent_bytes_per_step"),
        export=ExportSummary(chief["saved_model"], chief["saved_model_error"]) if "saved_model" in chief else None,
        keras=KerasSummary(chief["keras_model"], chief["keras_model_error"]) if "keras_model" in chief else None,
        observed=_named_flat(observed),
        training=_named_flat(record.training),
        validation=_named_flat(record.validation),
        compared=_compared(record, loss_last) if action_named(summary.action).trains else None,
    )
    return with_verification(summary, chief["comparison"]) if "comparison" in chief else summary


def _losses(record: RunRecord, steps: int, before: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Returns the first and the last loss of the run."""
    if record.loss_last is None and record.unknown_loss is None and before.get("steps") == steps:
        # The earlier run completed all steps, but was killed before it could end.
        return before.get("loss_first"), before.get("loss_last")
    return record.loss_first, record.loss_last


def _mean_over_ranks(done: Mapping[int, Mapping[str, Any]], name: str) -> float | None:
    """Returns the mean of a field over the ranks that report it, or None if no rank does."""
    found = [entry[name] for entry in done.values() if entry.get(name) is not None]
    return sum(found) / len(found) if found else None


def _compared(record: RunRecord, loss_last: float | None) -> ObjectiveSummary:
    """Returns the goal of the run with its value if the last validation computed one, otherwise the training loss."""
    value = record.goal.in_validation(record.validation)
    if value is None:
        return ObjectiveSummary(TRAINING_LOSS.name, loss_last, TRAINING_LOSS.direction)
    return ObjectiveSummary(record.goal.name, value, record.goal.direction)


def with_verification(summary: RunSummary, comparison: Mapping[str, Any]) -> RunSummary:
    """Returns the summary of `action=verify`. The run counts as failed if its result differs from training on one
    device."""
    verification = VerifySummary(comparison["ok"], comparison["max_relative"])
    summary = dataclasses.replace(summary, verification=verification)
    if verification.verified:
        return summary
    missing = [f"«{name}» is missing" for name in comparison["missing"]]
    reason = comparison["first_difference"] or "; ".join(missing) or "nothing to compare"
    first, last = comparison["differs_in_steps"]
    # A short run is a single part.
    where = "" if summary.steps - summary.first_step <= PART_STEPS else f" in steps {first} to {last}"
    return dataclasses.replace(
        summary, status="failed", error=f"the result differs from training on one device{where}: {reason}"
    )


def _named_flat(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    return {key.replace("/", "_"): value for key, value in metrics.items()}


def _flat(part: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in dataclasses.fields(part):
        value = getattr(part, entry.name)
        if isinstance(value, Mapping):
            found |= value
        elif dataclasses.is_dataclass(value):
            found |= _flat(value)
        elif value is not None or not entry.metadata.get("optional"):
            found[entry.metadata.get("key", entry.name)] = value
    return found
