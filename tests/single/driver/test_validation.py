"""What is said where a model cannot be validated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.config.frozen import from_plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset
from parallax_runner.driver import validation
from parallax_runner.errors import CaptureError, ConfigError, PlanError
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.plan import Plan
from tests.single.small_models import FEATURES, Features, captured, lookup_model, planned
from tests.single.train.test_loop import dataset

PLAN = Plan("mpi", 2, 0, "f", (), ("a note",))


def config(batch_size: int, validate_steps: int | None = None) -> RunConfig:
    return from_plain({"data": {"batch_size": batch_size}, "train": {"validate_steps": validate_steps}})


@pytest.fixture(scope="module")
def single() -> SingleDeviceGraph:
    found = captured()
    assert found.validation_loss is not None and planned(found, "local")
    return found


def notes(config: RunConfig, single: SingleDeviceGraph, data: Dataset) -> tuple[str, ...]:
    return validation.planned(config, PLAN, single, data).notes


@pytest.mark.parametrize(("examples", "batch_size"), [(13, 13), (0, 13), (13, 14), (1, 14)])
def test_less_than_a_batch_is_enough(examples: int, batch_size: int, single: SingleDeviceGraph) -> None:
    assert notes(config(batch_size), single, dataset(validation=examples)) == PLAN.notes
    assert validation.is_possible(single, dataset(validation=examples)) == (examples > 0)


def test_a_note_where_no_example_is_left_although_some_were_wanted(single: SingleDeviceGraph) -> None:
    none = dataset(validation=0)
    wanted = from_plain({"data": {"batch_size": 2, "validation_examples": 10}, "train": {}})
    assert notes(wanted, single, none) == (*PLAN.notes, "this run is not validated: there are no validation examples")
    none.missing_validation = "the text has one line"  # type: ignore[attr-defined]
    assert notes(wanted, single, none) == (*PLAN.notes, "this run is not validated: the text has one line")
    unwanted = from_plain({"data": {"batch_size": 2, "validation_examples": 0}, "train": {}})
    assert notes(unwanted, single, none) == PLAN.notes


def test_what_cannot_be_validated_is_refused_where_it_was_asked_for(single: SingleDeviceGraph) -> None:
    asked = config(2, validate_steps=5)
    assert notes(asked, single, dataset(validation=1)) == PLAN.notes
    patient = from_plain({"data": {"batch_size": 2}, "train": {"validate_steps": 5, "patience": 3}})
    told = (
        r"train\.patience=3, train\.validate_steps=5: this run cannot be validated: there are no validation examples$"
    )
    with pytest.raises(ConfigError, match=told):
        notes(patient, single, dataset(validation=0))
    with pytest.raises(
        ConfigError, match=r"train\.validate_steps=5: this run cannot be validated: the model has no validation_loss"
    ):
        notes(asked, dataclasses.replace(single, validation_loss=None), dataset())


def validated_by(of_loss: Callable[[tf.Tensor], Any]) -> SingleDeviceGraph:
    """A model whose validation loss `of_loss` makes of its loss."""

    def build(features: Features) -> dict[str, Any]:
        loss = tf.reduce_mean(tf.square(lookup_model(features) - features["y"]))
        train_op = tf.train.AdagradOptimizer(0.1).minimize(loss)
        return {"loss": loss, "train_op": train_op, "validation_loss": of_loss(loss)}

    return capture(build, FEATURES, seed=1)


def counter() -> Any:
    return tf.get_variable("counter", [], tf.float64, trainable=False, use_resource=True)


def in_a_branch(loss: tf.Tensor) -> tf.Tensor:
    count = counter()
    return tf.cond(loss > 0, lambda: count.assign_add(1.0), lambda: loss)


def in_a_function(loss: tf.Tensor) -> tf.Tensor:
    add = tf.function(lambda variable, value: variable.assign_add(value))
    with tf.control_dependencies([add(counter(), loss)]):
        return tf.identity(loss)


@pytest.mark.parametrize(
    ("of_loss", "named"),
    [
        (lambda loss: tf.metrics.mean(loss)[0], "mean_1/total"),
        (lambda loss: tf.metrics.mean(loss)[1], "mean_1/total"),
        (lambda loss: tf.metrics.auc(loss > 0, tf.sigmoid(loss))[1], "auc/true_positives"),
        (lambda loss: tf.identity(counter().assign_add(loss)), "AssignAddVariableOp"),
        (in_a_branch, "cond"),
        (in_a_function, "PartitionedCall"),
    ],
)
def test_a_validation_loss_that_accumulates_is_refused(of_loss: Callable[[tf.Tensor], Any], named: str) -> None:
    with pytest.raises(PlanError, match=r"validation_loss .*return the value of one batch") as refused:
        notes(config(13), validated_by(of_loss), dataset())
    assert named in str(refused.value)


def test_a_validation_loss_that_reads_is_not() -> None:
    found = validated_by(lambda loss: loss + counter())
    assert notes(config(13), found, dataset(validation=13)) == PLAN.notes


def test_a_validation_loss_is_a_scalar() -> None:
    for of_loss in (tf.metrics.mean, lambda loss: tf.stack([loss, loss])):
        with pytest.raises(CaptureError, match="validation_loss must be a scalar tensor"):
            validated_by(of_loss)
