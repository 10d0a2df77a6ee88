"""Finds the goal of a sweep's jobs before the first job runs, for a sweeper that needs the goal's direction."""

from __future__ import annotations

import dataclasses
import tempfile

from parallax_runner.config.objective import PERPLEXITY, TRAINING_LOSS, VALIDATION_LOSS, Goal
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver import validation
from parallax_runner.driver.goal import goal_of
from parallax_runner.graph.build import MODEL


def goal_before_jobs(config: RunConfig) -> Goal:
    """Returns the goal of a job. `config` contains the settings that all jobs share.

    If neither the objective's name nor `train.direction` determines the direction, builds the model's graph. Raises
    ParallaxError if the data, the graph or the objective is invalid.
    """
    name, direction = config.train.objective, config.train.direction
    if name in ("loss", PERPLEXITY.metric):
        return VALIDATION_LOSS if name == "loss" else PERPLEXITY
    if name is not None and direction is not None:
        return Goal(name, name, "maximize" if direction == "maximize" else "minimize")
    with tempfile.TemporaryDirectory(prefix="parallax_runner-") as folder:
        apart = dataclasses.replace(config, run_dir=folder)  # the output of TensorFlow's start is not kept
        dataset = MODEL.load_dataset(apart)
        single = MODEL.build_graph(apart, dataset)
    goal = goal_of(config, single, dataset)
    return goal if validation.is_possible(single, dataset) else TRAINING_LOSS
