"""Opens the record of a run in the tracker that the configuration names."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallax_runner.config.actions import action_of
from parallax_runner.config.frozen import SCRIPT, plain, written
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.used_params import used_params
from parallax_runner.plan.plan import Plan
from parallax_runner.process.stage_times import stage
from parallax_runner.track.careful import CarefulTracker
from parallax_runner.track.origin import origin_of
from parallax_runner.track.tracker import NoTracker, RunInfo, Start, Tracker, find_tracker

WARM_START_TAG = "parallax.warm_started_from"


def tracker_class(config: RunConfig) -> type[Tracker] | None:
    """Returns the tracker class that records a job with this configuration, or None if nothing is recorded."""
    if not config.tracking.enabled or not action_of(config).runs_steps:
        return None
    return find_tracker(config.tracking.tracker)


@stage("tracking")
def open_tracker(config: RunConfig, plan: Plan, run_dir: Path, summary: Mapping[str, Any]) -> Tracker:
    """Opens the record of this job and logs its parameters. Returns a `NoTracker` if nothing is recorded. `summary`
    contains the fields of the summary that are known so far."""
    cls = tracker_class(config)
    if cls is None:
        return NoTracker()
    what = {"comm": plan.comm, "model": name_of_model(config), "workers": plan.workers, "servers": plan.servers}
    run = RunInfo(
        run_dir=run_dir,
        name=config.tracking.run_name or default_run_name(config, plan, time.localtime()),
        config=recorded(config),
        tags={**what, **warm_start_tag(config, run_dir), **recorded(config)["tracking"]["tags"]},
        origin=origin_of(Path.cwd()),
        start=_start_of(config),
        sweep_dir=None if config.sweep.dir is None else Path(config.sweep.dir),
        summary=summary,
    )
    tracker = CarefulTracker(cls(run))
    tracker.log_params(used_params(config))
    return tracker


def recorded(config: RunConfig) -> dict[str, Any]:
    """Returns the configuration for a tracker. A value that depends on an environment variable is its interpolation,
    except the tracker's own settings, which name its store and its records."""
    content = written(config)
    return {**content, "tracking": {**plain(config.tracking), "tags": content["tracking"]["tags"]}}


def default_run_name(config: RunConfig, plan: Plan, now: time.struct_time) -> str:
    """Returns a name with a run's model, communication mode, number of workers and start time, for example
    `lm-hybrid-2w-20261124-083000`. An action that does not train comes first."""
    action = () if action_of(config).trains else (config.action,)
    return "-".join(
        (*action, name_of_model(config), plan.comm, f"{plan.workers}w", time.strftime("%Y%m%d-%H%M%S", now))
    )


def name_of_model(config: RunConfig) -> str:
    """Returns the name of the chosen `model`, or the name of the script if a script calls parallel_run."""
    if config.model["_target_"] == SCRIPT:
        return Path(config.model["path"]).stem
    return config.model_name


def warm_start_tag(config: RunConfig, run_dir: Path) -> dict[str, str]:
    """Returns a tag with the source of a warm start: the run in the tracker that wrote the checkpoint or, if it is
    unknown, the path of the checkpoint or file. Returns an empty dict if the run starts otherwise."""
    if config.ckpt.warm_start is None or not config.ckpt.enabled or config.ckpt.resume != "never":
        return {}
    from parallax_runner.checkpoints.checkpoint_files import read_sidecar, sidecar_path
    from parallax_runner.checkpoints.origin import source_of
    from parallax_runner.checkpoints.warm_start import WarmStart

    prefix = Path(WarmStart.load(run_dir).prefix)
    run_id = read_sidecar(prefix).tracker_run_id if sidecar_path(prefix).exists() else None
    return {WARM_START_TAG: run_id or str(source_of(prefix))}


def _start_of(config: RunConfig) -> Start | None:
    if config.ckpt.resume == "never":
        return None
    from parallax_runner.checkpoints.checkpoint_files import read_sidecar
    from parallax_runner.checkpoints.origin import source_of

    prefix = Path(config.ckpt.resume)
    return Start(source_of(prefix), read_sidecar(prefix).tracker_run_id)
