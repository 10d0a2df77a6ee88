"""`summary.json` as an object, and how it is made of what a run's ranks report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parallax_runner.config.frozen import SCRIPT
from parallax_runner.config.objective import TRAINING_LOSS, Direction, Objective
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.partition_results import SearchSummary
from parallax_runner.track.origin import program
from parallax_runner.track.run_record import RunRecord, counts_of, histogram_of
from parallax_runner.track.tracker import Status

# What the chief says at its end, under the names of the summary.
OF_CHIEF = ("steps", "skipped_steps", "steps_per_sec", "step_ms_p50", "step_ms_p90", "ckpt_path")


@dataclass(frozen=True)
class ExportSummary:
    """The folder of the model for serving, or why there is none."""

    saved_model: str | None
    saved_model_error: str | None


@dataclass(frozen=True)
class ObjectiveSummary:
    """What the run is compared by, its value, and which values are better."""

    objective: str
    objective_value: float | None
    objective_direction: Direction


@dataclass(frozen=True)
class KerasSummary:
    """The `.keras` file of a Keras model, or why there is none."""

    keras_model: str | None
    keras_model_error: str | None


@dataclass(frozen=True)
class VerifySummary:
    """Of action=verify; a difference that is no finite number is text."""

    verified: bool
    max_difference: float | str | None


@dataclass(frozen=True)
class RunSummary:
    """All fields of `summary.json` (docs/concepts.md, «What a run leaves behind»), in their order; a part that is made
    of several fields stands among the others. What is `optional` and None is left out.

    `version` and `commit` are this program's. `observed` are counts of staleness and dropped gradients, `training` the
    metrics of the last training steps, `validation` the last validation's numbers.
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
    steps_per_sec: float | None = None
    examples_per_sec: float | None = None
    words_per_sec: float | None = None
    step_ms_p50: float | None = None
    step_ms_p90: float | None = None
    sent_bytes_per_step: float | None = None
    startup_secs: float | None = None
    mlflow_run_id: str | None = None
    ckpt_path: str | None = None
    error: str | None = None
    version: str | None = None
    commit: str | None = None
    search: SearchSummary | None = field(default=None, metadata={"optional": True})
    skipped_steps: int | None = field(default=None, metadata={"optional": True})
    export: ExportSummary | None = field(default=None, metadata={"optional": True})
    keras: KerasSummary | None = field(default=None, metadata={"optional": True})
    observed: Mapping[str, float | None] = field(default_factory=dict)
    training: Mapping[str, float | None] = field(default_factory=dict)
    validation: Mapping[str, float | None] = field(default_factory=dict)
    compared: ObjectiveSummary | None = field(default=None, metadata={"optional": True})
    verification: VerifySummary | None = field(default=None, metadata={"optional": True})

    @property
    def objective(self) -> Objective:
        """What the run is compared by; the training loss where nothing else was found."""
        found = self.compared
        if found is None:
            return Objective(TRAINING_LOSS.name, self.loss_last, TRAINING_LOSS.direction)
        return Objective(found.objective, found.objective_value, found.objective_direction)

    @classmethod
    def begun(cls, config: RunConfig) -> RunSummary:
        """Of a run of which nothing else is known yet."""
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
        """As the file has it."""
        return _flat(self)


def global_batch(config: RunConfig, contributors: int) -> int | None:
    """Examples in a step of so many replicas; None where a script feeds them, and only it knows how many."""
    return None if config.model["_target_"] == SCRIPT else int(config.data["batch_size"]) * contributors


def with_training(
    summary: RunSummary, record: RunRecord, done: Mapping[int, Mapping[str, Any]], before: Mapping[str, Any]
) -> RunSummary:
    """The summary with what the run's record and its ranks' last words (`done`, by rank) say of the steps; `before` is
    that of an earlier run in the same folder."""
    chief = done.get(0, {})
    steps, loss_first, loss_last = chief.get("steps", record.last_step), record.loss_first, record.loss_last
    if loss_last is None and before.get("steps") == steps:
        # The run before had done all steps, and was killed at its end.
        loss_first, loss_last = before.get("loss_first"), before.get("loss_last")
    observed = histogram_of(record.staleness)
    if record.contributors is not None:
        observed |= counts_of(record.dropped, record.workers)
    sent = [entry["sent_bytes_per_step"] for entry in done.values() if entry.get("sent_bytes_per_step") is not None]
    rates = record.rates(chief.get("steps_per_sec"))
    summary = dataclasses.replace(
        summary,
        **{"steps": steps} | {key: chief[key] for key in OF_CHIEF if key in chief},
        examples_per_sec=rates["examples_per_sec"],
        words_per_sec=rates["words_per_sec"],
        global_batch=record.global_batch,
        loss_first=loss_first,
        loss_last=loss_last,
        startup_secs=record.startup_secs,
        sent_bytes_per_step=sum(sent) / len(sent) if sent else None,
        export=ExportSummary(chief["saved_model"], chief["saved_model_error"]) if "saved_model" in chief else None,
        keras=KerasSummary(chief["keras_model"], chief["keras_model_error"]) if "keras_model" in chief else None,
        observed=_named_flat(observed),
        training=_named_flat(record.training),
        validation=_named_flat(record.validation),
        compared=_compared(record, loss_last) if summary.action == "train" else None,
    )
    return with_verification(summary, chief["comparison"]) if "comparison" in chief else summary


def _compared(record: RunRecord, loss_last: float | None) -> ObjectiveSummary:
    """By the goal of the run if its last validation has found a value, else by the training loss."""
    value = record.goal.in_validation(record.validation)
    if value is None:
        return ObjectiveSummary(TRAINING_LOSS.name, loss_last, TRAINING_LOSS.direction)
    return ObjectiveSummary(record.goal.name, value, record.goal.direction)


def with_verification(summary: RunSummary, comparison: Mapping[str, Any]) -> RunSummary:
    """The summary of `action=verify`: a run that is not what one device does has failed."""
    verification = VerifySummary(comparison["ok"], comparison["max_relative"])
    summary = dataclasses.replace(summary, verification=verification)
    if verification.verified:
        return summary
    missing = [f"«{name}» is missing" for name in comparison["missing"]]
    reason = comparison["first_difference"] or "; ".join(missing) or "nothing to compare"
    return dataclasses.replace(summary, status="failed", error=f"not what one device does: {reason}")


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
            found[entry.name] = value
    return found
