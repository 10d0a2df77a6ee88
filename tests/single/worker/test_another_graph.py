"""A worker of a measurement that builds another graph than the driver names the op that differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.config.compose import Composer, resolve
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.validate import validate
from parallax_runner.data.linear import load
from parallax_runner.driver.jobs import child_job, row_trial
from parallax_runner.errors import PlanError
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan import plan as plans
from parallax_runner.plan.plan import Plan
from parallax_runner.shipment.shipment import Shipment
from parallax_runner.shipment.stored_values import StoredValues
from parallax_runner.worker.rank import check_graph

NAMES_THE_OP = r"rank 0 built a graph that differs from the driver's: .*«process» \(Const\): its attribute «value»"


def built(by: int) -> SingleDeviceGraph:
    def model(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        weights = tf.get_variable("weights", [2])
        loss = tf.reduce_sum(weights * features["x"] * tf.constant(float(by), name="process"))
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.1).minimize(loss)}

    return capture(model, {"x": ((2,), "float32")}, seed=1)


def plan_of(single: SingleDeviceGraph) -> Plan:
    return Plan("local", 1, 0, single.fingerprint, (), ())


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    job = Composer().job(["model=simple", f"run_dir={tmp_path / 'trial'}"])
    return validate(resolve(job), job.origins)


def worker(folder: Path, *_: object, **__: object) -> None:
    """What a worker whose run directory is `folder` does first."""
    check_graph(built(2), plans.load(folder / plans.FILE_NAME), folder, rank=0)


def folder_of(config: RunConfig, plan: Plan, folder: Path, **_: object) -> Path:
    """Stands in for `launch_spec`; only the run directory matters here."""
    return folder


def test_of_a_measurement(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_job, "launch_spec", folder_of)
    monkeypatch.setattr(child_job.processes, "run", worker)
    single = built(1)
    points = load(examples=8, validation_examples=4, noise=0.0, seed=1)
    shipment = Shipment(StoredValues(single, {}), points, graph_stays="a test", data_stays="a test")
    with pytest.raises(PlanError, match=NAMES_THE_OP):
        row_trial.measure(config, shipment, plan_of(single), tmp_path)
