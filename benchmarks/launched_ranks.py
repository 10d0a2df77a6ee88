"""Runs the ranks of a benchmark on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from parallax_runner.launch import processes
from parallax_runner.launch.job import Job, LaunchSpec, thread_environment
from parallax_runner.launch.launchers.local import Local


def run_ranks(module: str, folder: Path, order: dict[str, Any]) -> None:
    """Runs `module` in each of `order["ranks"]` ranks, with one thread each, which read `folder/order.json`. Raises
    RuntimeError if a rank fails."""
    (folder / "order.json").write_text(json.dumps(order))
    job = Job(
        run_dir=folder,
        workers=order["ranks"],
        servers=0,
        env=thread_environment(1),
        worker_module=module,
    )
    result = processes.run(LaunchSpec(job, Local()), on_message=lambda message: None)
    if result.failure is not None:
        raise RuntimeError("\n".join([str(result.failure), *result.failure.last_lines]))
