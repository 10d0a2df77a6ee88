"""The keys of group `comm` that the choice of `comm`, the action or the model restricts."""

import shlex
from typing import Any

from parallax_runner.collectives.chosen import BACKENDS
from parallax_runner.config.actions import action_of
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.explain import refusal
from parallax_runner.config.launchers import declared_by
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.targets import SCRIPT


def check_asynchrony(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for asynchronous training without servers, or where its result must not depend on timing."""
    comm = config.comm
    if comm.sync:
        return
    if not mode_of(comm).is_all_on_servers:
        needed = f"asynchronous training needs the servers of comm=ps, but the choice is comm={comm.name}"
        raise refusal("comm.sync", origins, needed, value=False)
    if action_of(config).repeats_steps:
        needed = "the result of asynchronous training depends on timing, so a comparison is not possible"
        raise refusal("comm.sync", origins, f"{needed}; action={config.action} needs comm.sync=true", value=False)


def check_mpirun_options(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for options that are neither a list of strings nor a string that a shell can split."""
    key, options = "comm.mpi.mpirun_options", config.comm.mpi.mpirun_options
    if _is_list_of_strings(options):
        return
    if not isinstance(options, str):
        raise refusal(key, origins, "expected a string or a list of strings", value=options)
    try:
        shlex.split(options)
    except ValueError as error:
        raise refusal(key, origins, f"a shell cannot split these options: {error}", value=options) from error


def _is_list_of_strings(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, str) for one in value)


def check_measured_rows(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if rows must be measured but are not, or cannot be measured."""
    key, is_chosen_by_cost = "comm.measure_rows", mode_of(config.comm).is_chosen_by_cost
    if is_chosen_by_cost:
        if not config.comm.measure_rows and origins.is_set(key):
            raise refusal(key, origins, "comm=auto chooses routes by measured rows; omit this key", value=False)
        return
    if config.comm.measure_rows and config.model["_target_"] == SCRIPT:
        needed = "a script feeds its own data, so the rows that its steps touch are unknown; omit this key"
        raise refusal(key, origins, needed, value=True)


def check_mode_of_script(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for a mode that needs to know more about the steps than a script tells."""
    if config.model["_target_"] != SCRIPT:
        return
    mode = mode_of(config.comm)
    if mode.is_chosen_by_cost:
        needed = "a script feeds its own data, so the rows that its steps touch are unknown; choose comm=hybrid"
        raise refusal("comm.name", origins, needed, value=config.comm.name)
    if mode.needs_all_ranks:
        needed = "a script may run ops on one worker, but only all ranks together can read rows; choose comm=hybrid"
        raise refusal("comm.name", origins, needed, value=config.comm.name)


def check_backend(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for a backend that needs mpirun, if the launcher does not use mpirun."""
    chosen = BACKENDS.get(config.comm.backend)
    if chosen is None or not chosen.needs_mpirun:
        return
    if declared_by(config.cluster.launcher).without_mpirun:
        needed = f"cluster={config.cluster.launcher} uses no mpirun, which {chosen.title} need"
        raise refusal("comm.backend", origins, f"{needed}; use comm.backend=horovod", value=config.comm.backend)
