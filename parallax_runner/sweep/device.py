"""Assigns a separate GPU to each of the jobs that run at the same time (`sweep.device_per_job`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from parallax_runner.config.gpus import detect_gpus
from parallax_runner.errors import LaunchError, Setting
from parallax_runner.files.locks import locked
from parallax_runner.files.plain import reason_of

FOLDER = "devices"
VISIBLE = "CUDA_VISIBLE_DEVICES"
_SETTING = Setting("sweep.device_per_job", None)


@contextmanager
def own_gpu(sweep_dir: Path) -> Iterator[None]:
    """Selects a GPU that no other job of the sweep is using, and makes only this GPU visible to this process and its
    children.

    The lock on the GPU is released when the job's process dies. Raises LaunchError if all GPUs are in use.
    """
    gpus = detect_gpus()
    before = os.environ.get(VISIBLE)
    with ExitStack() as held:
        gpu = next((gpu for gpu in gpus if _take(sweep_dir / FOLDER / f"gpu_{gpu}.lock", held)), None)
        if gpu is None:
            remedy = f"set hydra.launcher.n_jobs to at most {len(gpus)}"
            raise LaunchError("every GPU of this machine already has a job").about(_SETTING, remedy=remedy)
        # `gpu` is an index into the list of GPUs that are visible to this process.
        os.environ[VISIBLE] = str(gpu) if before is None else before.split(",")[gpu].strip()
        try:
            yield
        finally:
            if before is None:
                del os.environ[VISIBLE]
            else:
                os.environ[VISIBLE] = before


def _take(path: Path, held: ExitStack) -> bool:
    try:
        path.parent.mkdir(exist_ok=True)
        held.enter_context(locked(path, wait=False))
    except BlockingIOError:
        return False
    except OSError as error:
        reason = f"{path} cannot be locked: {reason_of(error)}"
        raise LaunchError(reason).about(_SETTING, remedy="remove it") from error
    return True
