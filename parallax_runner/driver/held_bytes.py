"""Says in the plan which large values the driver itself holds. It captures most models without their tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from parallax_runner.config import frozen
from parallax_runner.config.actions import action_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.export.large_models import is_linked
from parallax_runner.plan.format_bytes import format_bytes
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.memory import with_slots_bytes

if TYPE_CHECKING:
    from parallax_runner.shipment.shipment import Shipment

# The driver needs no note for less.
LEAST_BYTES = 64 << 20


def with_notes_on_held_bytes(config: RunConfig, plan: Plan, shipment: Shipment, *, is_keras: bool) -> Plan:
    """Returns the plan with a note on each reason for which the driver holds large values. `is_keras` says whether the
    model is a Keras model."""
    notes = [note for size_bytes, note in _reasons(config, plan, shipment, is_keras) if size_bytes > LEAST_BYTES]
    return dataclasses.replace(plan, notes=(*plan.notes, *notes))


def _reasons(config: RunConfig, plan: Plan, shipment: Shipment, is_keras: bool) -> Iterator[tuple[int, str]]:
    """Yields the size in bytes of what the driver holds, and a note on it."""
    given_bytes = shipment.stored.size_bytes
    yield (
        given_bytes,
        f"the driver holds {format_bytes(given_bytes)} of values that only its process has: weights of a model that "
        "fit trains, loaded weights, a tf.Variable with a value, or large constants (docs/large-tables.md)",
    )
    if action_of(config).repeats_steps:
        all_bytes = sum(with_slots_bytes(variable) for variable in plan.variables)
        yield (
            all_bytes,
            f"the driver also trains on one device, with all variables and slots ({format_bytes(all_bytes)}), "
            "because action=verify compares with that",
        )
    held_bytes = exported_bytes(config, plan, is_keras=is_keras)
    what = "variables and slots" if is_keras else "variables"
    yield (
        held_bytes,
        f"at the end, the driver holds all {what} ({format_bytes(held_bytes)}) to export the model; "
        "tracking.log_checkpoints=none leaves this out",
    )


def exported_bytes(config: RunConfig, plan: Plan, *, is_keras: bool) -> int:
    """Returns the bytes of the values that the driver holds once to export the model at the end of the run."""
    if not action_of(config).trains or not frozen.exports_model(config):
        return 0
    if is_keras:  # model.keras also has the slots
        return sum(with_slots_bytes(variable) for variable in plan.variables)
    values_bytes = sum(variable.size_bytes for variable in plan.variables)
    return 0 if is_linked(values_bytes) else values_bytes
