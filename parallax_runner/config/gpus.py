"""Detects the GPUs of this machine without TensorFlow."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

NVIDIA_SMI = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
# This folder contains one folder per GPU. It is used if NVIDIA's driver is loaded but NVIDIA's tools are missing, as in
# some containers.
DRIVER_FOLDER = Path("/proc/driver/nvidia/gpus")
DETECTION_SECS = 20


def detect_gpus(
    environ: Mapping[str, str] = os.environ,
    *,
    command: tuple[str, ...] = NVIDIA_SMI,
    driver_folder: Path = DRIVER_FOLDER,
) -> tuple[int, ...]:
    """Returns the ids of this machine's GPUs as TensorFlow numbers them: 0, 1, … within CUDA_VISIBLE_DEVICES."""
    count = _count(command, driver_folder)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        listed = [one.strip() for one in visible.split(",")]
        # CUDA ignores all ids after the first id of a missing GPU. "-1" and "" hide all GPUs.
        valid = next((at for at, one in enumerate(listed) if not _exists(one, count)), len(listed))
        count = min(count, valid)
    return tuple(range(count))


def _exists(one: str, count: int) -> bool:
    return (one.isdigit() and int(one) < count) or one.startswith(("GPU-", "MIG-"))


def _count(command: tuple[str, ...], driver_folder: Path) -> int:
    try:
        listed = subprocess.run(
            command, capture_output=True, text=True, timeout=DETECTION_SECS, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return len(list(driver_folder.iterdir())) if driver_folder.is_dir() else 0
    return sum(line.strip().isdigit() for line in listed.stdout.splitlines())
