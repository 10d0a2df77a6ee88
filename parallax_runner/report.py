"""What the driver tells people: the plan, `summary.json`, and the last lines on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from parallax_runner.launch.blame import Failure
from parallax_runner.plan.plan import Plan
from parallax_runner.plan.table import plan_table
from parallax_runner.track.run_record import RunRecord

PLAIN_WIDTH = 140  # columns of the plan's table where there is no terminal


def show_plan(plan: Plan) -> None:
    """Prints the table of variables and the plan's notes."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=PLAIN_WIDTH)
    console.print(plan_table(plan))
    for note in plan.notes:
        console.print(f"note: {note}", highlight=False)


def empty_summary(config: DictConfig) -> dict[str, Any]:
    """All fields that DESIGN.md section 3 promises, for a run of which nothing is known yet."""
    unknown = (
        "loss_first loss_last steps_per_sec examples_per_sec words_per_sec step_ms_p50 step_ms_p90 "
        "sent_bytes_per_step startup_secs mlflow_run_id ckpt_path error"
    )
    return {
        "status": "failed",
        "action": config.action,
        "comm": config.comm.name,
        "model": config.model["_target_"],
        "workers": config.cluster.workers,
        "servers": 0,
        "steps": 0,
        "first_step": 0,
        "global_batch": config.data.batch_size * config.cluster.workers,
        **dict.fromkeys(unknown.split()),
    }


def summarize(record: RunRecord, done: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """What the run's record and its ranks' last words (`done`, by rank) say of it."""
    chief = done.get(0, {})
    own = ("first_step", "steps", "steps_per_sec", "step_ms_p50", "step_ms_p90", "ckpt_path")
    fields = {key: chief[key] for key in own if key in chief}
    sent = [entry["sent_bytes_per_step"] for entry in done.values() if entry.get("sent_bytes_per_step") is not None]
    return (
        {"steps": record.last_step, "global_batch": record.global_batch}
        | fields
        | record.rates(fields.get("steps_per_sec"))
        | {
            "loss_first": record.loss_first,
            "loss_last": record.loss_last,
            "startup_secs": record.startup_secs,
            "sent_bytes_per_step": sum(sent) / len(sent) if sent else None,
        }
    )


def verification(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the summary of `action=verify`: a run that is not what one device does has failed."""
    fields = {"verified": comparison["ok"], "max_difference": comparison["max_relative"]}
    if comparison["ok"]:
        return fields
    missing = [f"«{name}» is missing" for name in comparison["missing"]]
    reason = comparison["first_difference"] or "; ".join(missing) or "nothing to compare"
    return fields | {"status": "failed", "error": f"not what one device does: {reason}"}


def objective_of(summary: Mapping[str, Any]) -> str:
    """The field of the summary that sweeps compare: the validation metric, or else the last loss."""
    metrics = [key for key in summary if key.startswith("validation_") and key != "validation_loss"]
    return metrics[0] if metrics else "loss_last"


def tell_end(summary: Mapping[str, Any], failure: Failure | None, run_dir: Path) -> None:
    """The last lines on the terminal: how the run ended, and, where a process failed, what it said last."""
    if failure is not None:
        lines = "".join(f"    {line}\n" for line in failure.last_lines)
        said = f"its last lines:\n{lines}" if lines else "it said nothing\n"
        print(f"parallax_runner: {failure}\n{said}logs: {run_dir / 'logs'}", file=sys.stderr)
    elif summary["status"] != "finished":
        print(f"parallax_runner: {summary['error'] or summary['status']}; {run_dir}", file=sys.stderr)
        if summary["ckpt_path"]:
            print(
                f"{summary['steps']} steps are saved; go on with the same command and ckpt.resume={run_dir}",
                file=sys.stderr,
            )
    elif "verified" in summary:
        print(
            f"verified: after {summary['steps']} steps every variable equals one device's, largest difference "
            f"{summary['max_difference']:.2g} of what it moved; {run_dir}",
            file=sys.stderr,
        )
    else:
        known = [name for name in dict.fromkeys(["loss_last", objective_of(summary)]) if summary[name] is not None]
        shown = "".join(
            f", {name.removeprefix('validation_').removesuffix('_last')} {summary[name]:.4g}" for name in known
        )
        print(f"finished: {summary['steps']} steps{shown}; {run_dir}", file=sys.stderr)
