"""Opens the record of a run: where it goes, what it is called, and which earlier record it goes on with."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from parallax_runner.config.frozen import SCRIPT, plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.plan.plan import Plan
from parallax_runner.process.stage_times import stage
from parallax_runner.track.continuing import Start, continuation
from parallax_runner.track.destination import chosen_uri
from parallax_runner.track.journal import Header
from parallax_runner.track.journal_tracker import JournalTracker
from parallax_runner.track.origin import origin_tags
from parallax_runner.track.tracker import NoTracker, Tracker


@stage("tracking")
def open_tracker(config: RunConfig, plan: Plan, run_dir: Path, summary: dict[str, Any]) -> Tracker:
    """The MLflow run of this job, with its parameters; or nothing where tracking is off. `summary` is what is known."""
    if not config.tracking.enabled:
        return NoTracker()
    tracking, uri = config.tracking, chosen_uri(config.tracking.uri)
    goal = continuation(run_dir, uri, _checkpoint_of(config), in_sweep=config.sweep.dir is not None)
    tags = {
        **origin_tags(Path.cwd()),
        **{"comm": plan.comm, "model": config.model["_target_"], "workers": plan.workers, "servers": plan.servers},
        **({} if goal.resumed_from is None else {"parallax.resumed_from": goal.resumed_from}),
        **tracking.tags,
    }
    header = Header(
        uri=uri,
        experiment=tracking.experiment_name,
        run_name=tracking.run_name or default_run_name(config, plan, time.localtime()),
        tags={str(key): str(value) for key, value in tags.items()},
        parent=config.sweep.dir,
        continues=goal.continues,
        continues_journal=goal.continues_journal,
    )
    tracker = JournalTracker(run_dir, header, goes_on=goal.goes_on, summary=summary)
    tracker.log_params(_params(config))
    return tracker


def default_run_name(config: RunConfig, plan: Plan, now: time.struct_time) -> str:
    """What a run is, and when it began: `lm-hybrid-2w-20261124-083000`."""
    model = config.model
    *modules, function = model["_target_"].split(".")
    if model["_target_"] == SCRIPT:
        name = Path(model["path"]).stem
    elif function == "build" and modules:
        name = modules[-1]
    else:
        name = function
    action = () if config.action == "train" else (config.action,)
    return "-".join((*action, name, plan.comm, f"{plan.workers}w", time.strftime("%Y%m%d-%H%M%S", now)))


def _params(config: RunConfig) -> dict[str, Any]:
    """The configuration; without the number of partitions where it is yet to be found, for parameters never change."""
    params: dict[str, Any] = plain(config)
    if config.partition.name == "search":
        del params["partition"]["num"]
    return params


def _checkpoint_of(config: RunConfig) -> Start | None:
    if config.ckpt.resume == "never":
        return None
    from parallax_runner.checkpoints.files import read_sidecar

    prefix = Path(config.ckpt.resume)
    return Start(prefix, read_sidecar(prefix).mlflow_run_id)
