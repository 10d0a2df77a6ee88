"""The arguments of `fit`, and the checks of their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from parallax_runner.api.fit_metrics import ValidationMetrics
from parallax_runner.api.fit_validation import check_frequency
from parallax_runner.errors import ConfigError, Setting


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call of `fit` that do not belong to its data. `lines` are the call's overrides."""

    model: Any
    epochs: int
    initial_epoch: int
    validation_freq: int | list[int]
    validation_steps: int | None
    validation_batch_size: int | None
    verbose: int | str
    callbacks: Sequence[Any]
    lines: list[str] = field(default_factory=list)
    metrics: ValidationMetrics = field(default_factory=ValidationMetrics)


def check_arguments(wanted: Arguments) -> None:
    """Raises ConfigError for an argument that `fit` cannot use, and CaptureError for a model of Keras 2."""
    if not isinstance(wanted.epochs, int) or wanted.epochs < 1:
        raise ConfigError("expected an integer, at least 1").about(Setting("epochs", repr(wanted.epochs), where="fit"))
    check_frequency(wanted.validation_freq)
    _check_count("validation_steps", wanted.validation_steps)
    _check_count("validation_batch_size", wanted.validation_batch_size)
    if wanted.verbose not in (0, 1, 2):
        raise ConfigError("expected 'auto', 0, 1 or 2").about(Setting("verbose", repr(wanted.verbose), where="fit"))
    if not isinstance(wanted.initial_epoch, int) or not 0 <= wanted.initial_epoch < wanted.epochs:
        raise ConfigError(
            f"expected an integer, at least 0 and less than epochs={wanted.epochs}, because epochs is the number of "
            "the last epoch"
        ).about(Setting("initial_epoch", repr(wanted.initial_epoch), where="fit"))
    _check_model(wanted.model)


def check_metrics(metrics: ValidationMetrics, *, is_validated: bool) -> None:
    """Raises ConfigError for metrics of a validation if there is none, and for groups that no metric uses."""
    if metrics.names and not is_validated:
        raise ConfigError("there is no validation data, and only a validation computes these metrics").about(
            Setting("validation_metrics", repr(list(metrics.names)), where="fit"),
            remedy="pass validation_data or validation_split",
        )
    if metrics.groups is not None and not metrics.names:
        raise ConfigError("no metric uses these groups; pass validation_metrics, too").about(
            Setting("groups", metrics.groups, where="fit")
        )


def _check_model(model: Any) -> None:
    from parallax_runner.graph.traced.keras_2 import check_not_keras_2
    from parallax_runner.graph.traced.keras_model import is_keras_model

    check_not_keras_2(model, "fit got")
    if not is_keras_model(model):
        raise ConfigError(f"fit trains a compiled keras.Model, not {model!r}")
    if not model.compiled:
        raise ConfigError("fit trains a compiled keras.Model; call model.compile(optimizer=…, loss=…) first")


def _check_count(name: str, given: Any) -> None:
    if given is None:
        return
    if not isinstance(given, int) or given < 1:
        raise ConfigError("expected an integer, at least 1, or None").about(Setting(name, repr(given), where="fit"))
