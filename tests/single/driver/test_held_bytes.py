"""The plan says which large values the driver holds (driver/held_bytes.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from parallax_runner.config.compose import Composer, resolve
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.validate import validate
from parallax_runner.driver.held_bytes import LEAST_BYTES, with_notes_on_held_bytes
from tests.single.small_models import captured, planned


def composed(*lines: str) -> RunConfig:
    job = Composer().job(lines)
    return validate(resolve(job), job.origins)


def notes(*overrides: str, given_bytes: int = 0, is_keras: bool = False) -> list[str]:
    plan = planned(captured(), "sharded")
    shipment: Any = SimpleNamespace(stored=SimpleNamespace(size_bytes=given_bytes))
    found = with_notes_on_held_bytes(composed(*overrides), plan, shipment, is_keras=is_keras)
    return list(found.notes[len(plan.notes) :])


def test_a_small_model_needs_no_note() -> None:
    assert notes("action=verify", given_bytes=LEAST_BYTES) == []


def test_what_the_driver_holds_is_named_with_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallax_runner.driver.held_bytes.LEAST_BYTES", 0)
    (given,) = notes("tracking=off", given_bytes=512_000_000)
    assert given.startswith("the driver holds 512 MB of values")
    (verified,) = notes("action=verify", "tracking=off")
    assert verified.startswith("the driver also trains on one device")
    # The table has 6 rows of 2 numbers of 8 bytes, the weights have 2 numbers, and Adagrad keeps as many again.
    (exported,) = notes("tracking=mlflow")
    assert exported.startswith("at the end, the driver holds all variables (120 B)")
    (of_keras,) = notes("tracking=mlflow", is_keras=True)
    assert of_keras.startswith("at the end, the driver holds all variables and slots (232 B)")
    assert notes("tracking=mlflow", "tracking.log_checkpoints=none") == []
    assert notes("tracking=mlflow", "ckpt=off") == []
