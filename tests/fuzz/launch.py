"""Launches ranks that train random models, and goes on after a crash or a hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from parallax_runner.launch import processes
from parallax_runner.launch.job import Job, LaunchSpec, thread_environment
from tests.fuzz.module import write_models
from tests.fuzz.random_model import RandomModel
from tests.fuzz.worker import SERVERS
from tests.parallel.conftest import Forked

# A model takes about two seconds. TensorFlow waits without end for a rank that has failed.
HANG_SECS = 120.0


class Hang(Exception):
    """No model has been finished for a long time."""


def train_all(models: list[RandomModel], folder: Path, tell: Callable[[str], None]) -> dict[int, str]:
    """Trains the models with their own numbers of ranks. Returns why the processes of a model ended or hung, by
    seed."""
    ended: dict[int, str] = {}
    for ranks in sorted({model.processes for model in models}):
        remaining = [model for model in models if model.processes == ranks]
        while remaining:
            reason = _launch(ranks, remaining, folder)
            if reason is None:
                break
            seed = int((folder / "progress").read_text().split()[-1])
            ended[seed] = reason
            tell(f"seed {seed}: {reason.splitlines()[0]}")
            number = [model.seed for model in remaining].index(seed)
            remaining = remaining[number + 1 :]
    return ended


def _launch(ranks: int, models: list[RandomModel], folder: Path) -> str | None:
    """Returns why the launch ended early, or None."""
    folder.mkdir(exist_ok=True)
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "ranks").write_text(str(ranks))
    write_models(folder, models)
    progress = folder / "progress"
    progress.write_text(f"{models[0].seed}\n")
    started = time.time()

    def check() -> None:
        if time.time() - max(progress.stat().st_mtime, started) > HANG_SECS:
            raise Hang

    job = Job(
        run_dir=folder,
        workers=ranks,
        servers=SERVERS,
        env=thread_environment(1),
        worker_module="tests.fuzz.worker",
        server_module="tests.parallel.matrix_server",
    )
    try:
        result = processes.run(LaunchSpec(job, Forked()), on_message=lambda message: None, on_tick=check)
    except Hang:
        return f"hung for {HANG_SECS:.0f} s"
    if result.status == "finished":
        return None
    if result.status == "interrupted":
        raise KeyboardInterrupt
    lines = result.failure.last_lines if result.failure else ()
    return "\n".join([f"{result.failure}", *lines])
