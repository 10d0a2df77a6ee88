"""Checkpoints on disk: names, sidecars, which to keep and which to start from. Opens no session."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from parallax_runner.errors import CheckpointError

STEM = "model.ckpt"
FORMAT = 1


@dataclass(frozen=True)
class Sidecar:
    """What a checkpoint's JSON file says beside the variables.

    `step` steps are done and `examples` examples of the data's stream consumed, by all ranks together.
    """

    step: int
    examples: int
    seed: int
    fingerprint: str
    mlflow_run_id: str | None
    format: int = FORMAT


def prefix_of(folder: Path, step: int) -> Path:
    """What TensorFlow calls the checkpoint of a step: the common start of its files' names."""
    return folder / f"{STEM}-{step}"


def sidecar_path(prefix: Path) -> Path:
    """Where a checkpoint's sidecar is."""
    return prefix.with_name(prefix.name + ".json")


def read_sidecar(prefix: Path) -> Sidecar:
    """Raises CheckpointError where it is missing or not ours."""
    try:
        sidecar = Sidecar(**json.loads(sidecar_path(prefix).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"checkpoint {prefix}: its sidecar {sidecar_path(prefix).name} is unusable: {error}"
        ) from error
    if sidecar.format != FORMAT:
        raise CheckpointError(f"checkpoint {prefix}: format {sidecar.format}, and this parallax_runner reads {FORMAT}")
    return sidecar


def publish(written: Path, folder: Path, sidecar: Sidecar) -> Path:
    """Moves the files of a checkpoint that was written under `written` (a prefix in another folder on the same file
    system) into `folder`, its sidecar last: a checkpoint without one is not there. Returns the new prefix."""
    prefix = prefix_of(folder, sidecar.step)
    sidecar_path(prefix).unlink(missing_ok=True)
    for file in sorted(written.parent.glob(f"{written.name}.*")):
        _sync(file)
        os.replace(file, prefix.with_name(prefix.name + file.name.removeprefix(written.name)))
    partial = written.parent / "sidecar"
    partial.write_text(json.dumps(dataclasses.asdict(sidecar), indent=1) + "\n", encoding="utf-8")
    _sync(partial)
    os.replace(partial, sidecar_path(prefix))
    shutil.rmtree(written.parent)
    _sync(folder)
    return prefix


def list_checkpoints(folder: Path) -> list[Path]:
    """Prefixes of the complete checkpoints of a folder, in the order in which they were written.

    Not by step: a fresh run in a used folder begins again at low ones, and must not lose its own to old ones.
    """
    found = []
    for file in folder.glob(f"{STEM}-*.json"):
        match = re.fullmatch(rf"{re.escape(STEM)}-(\d+)\.json", file.name)
        if match and file.with_suffix(".index").exists():
            found.append((file.stat().st_mtime_ns, int(match[1]), file.with_suffix("")))
    return [prefix for *_, prefix in sorted(found)]


def forget_old(folder: Path, keep: int) -> None:
    """Deletes all checkpoints but the `keep` newest."""
    for prefix in list_checkpoints(folder)[:-keep]:
        sidecar_path(prefix).unlink()
        for file in folder.glob(f"{prefix.name}.*"):
            file.unlink()


def find_start(resume: str, folder: Path) -> Path | None:
    """The prefix that a run starts from, None for a fresh start.

    `resume` is `never`, `auto` (the newest that `folder` holds), or a path to a checkpoint, to a folder of checkpoints
    or to a run directory. Raises CheckpointError where a path leads to no checkpoint.
    """
    if resume == "never":
        return None
    if resume == "auto":
        found = list_checkpoints(folder)
        return found[-1] if found else None
    path = Path(resume)
    if sidecar_path(path).exists():
        return path
    for candidate in (path, path / "ckpt"):
        found = list_checkpoints(candidate)
        if found:
            return found[-1]
    raise CheckpointError(
        f"ckpt.resume={resume}: no checkpoint there; give the prefix of one (…/{STEM}-300), a folder that holds some, "
        "or the directory of a run"
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
