"""Checks conditions that types cannot express: ranges, files that must exist, and combinations of choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from omegaconf import DictConfig

from parallax_runner.config.frozen import as_written
from parallax_runner.config.origins import Origins
from parallax_runner.config.rules import action, cluster, comm, folders, launcher, sweep, tracking, train
from parallax_runner.config.rules.backup import check_backup
from parallax_runner.config.rules.choice_names import check_choice_names
from parallax_runner.config.rules.data import check_data
from parallax_runner.config.rules.deltas import check_deltas
from parallax_runner.config.rules.epochs import check_epochs
from parallax_runner.config.rules.free_groups import check_free_groups
from parallax_runner.config.rules.keys import check_keys
from parallax_runner.config.rules.learning_rates import check_learning_rates
from parallax_runner.config.rules.partition import check_barrier, check_partition
from parallax_runner.config.rules.profile import check_profile
from parallax_runner.config.rules.resize import check_resize
from parallax_runner.config.rules.routes import check_routes
from parallax_runner.config.rules.update import check_update
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.unused_keys import without_unused


class Rule(NamedTuple):
    """A function that raises ConfigError for one kind of mistake. With `of_unused`, it also sees the values of keys
    that the configuration does not use: values that contradict each other are wrong even if they have no effect."""

    check: Callable[[RunConfig, Origins], None]
    of_unused: bool = False


# In this order: the first error is the one that the user sees.
RULES = (
    Rule(train.check_steps),
    Rule(cluster.check_gpu_memory),
    Rule(launcher.check_settings),
    Rule(cluster.check_hosts),
    Rule(comm.check_asynchrony),
    Rule(train.check_skipped_steps),
    Rule(train.check_accumulation),
    Rule(train.check_mixed_precision),
    Rule(comm.check_mpirun_options),
    Rule(comm.check_measured_rows),
    Rule(comm.check_backend),
    Rule(comm.check_mode_of_script),
    Rule(check_epochs),
    Rule(launcher.check_launcher),
    Rule(check_backup),
    Rule(check_resize),
    Rule(check_partition, of_unused=True),
    Rule(check_barrier),
    Rule(check_data),
    Rule(check_learning_rates),
    Rule(check_update),
    Rule(check_profile, of_unused=True),
    Rule(check_deltas),
    Rule(folders.check_resume),
    Rule(folders.check_warm_start),
    Rule(folders.check_folders),
    Rule(action.check_action),
    Rule(sweep.check_ensemble),
    Rule(sweep.check_device_per_job),
    Rule(tracking.check_tracker),
    Rule(tracking.check_tracking_uri),
    Rule(check_routes),
    Rule(check_choice_names),
)


def validate(composed: DictConfig, origins: Origins) -> RunConfig:
    """Checks a resolved configuration, and returns it as a RunConfig.

    Raises ConfigError for the first error.
    """
    check_free_groups(composed, origins)
    check_keys(composed, origins)
    given = as_written(composed)
    action.check_action_name(given.action, origins)
    config = without_unused(given)
    for rule in RULES:
        rule.check(given if rule.of_unused else config, origins)
    return config
