"""Says in the plan which large values the driver itself holds. It captures most models without their tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from parallax_runner.config import frozen
from parallax_runner.config.actions import action_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.plan.format_bytes import format_bytes
from parallax_runner.plan.plan import Plan

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
    with_slots_bytes = sum(variable.size_bytes * (1 + len(variable.slots)) for variable in plan.variables)
    if action_of(config).repeats_steps:
        yield (
            with_slots_bytes,
            f"the driver also trains on one device, with all variables and slots ({format_bytes(with_slots_bytes)}), "
            "because action=verify compares with that",
        )
    if action_of(config).trains and frozen.exports_model(config):
        own_bytes = sum(variable.size_bytes for variable in plan.variables)
        held_bytes, what = (with_slots_bytes, "variables and slots") if is_keras else (own_bytes, "variables")
        yield (
            held_bytes,
            f"at the end, the driver holds all {what} ({format_bytes(held_bytes)}) to export the model; "
            "tracking.log_checkpoints=none leaves this out",
        )
