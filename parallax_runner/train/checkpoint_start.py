"""Which checkpoint a run starts from: the newest that is whole. Opens no session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from parallax_runner.errors import CheckpointError
from parallax_runner.train.checkpoint_files import STEM, damage, list_checkpoints, sidecar_path, tidy


@dataclass(frozen=True)
class Start:
    """`prefix` is None for a fresh start; `notes` say which newer checkpoints are damaged, and how."""

    prefix: Path | None
    notes: tuple[str, ...] = ()


def find_start(resume: str, folder: Path) -> Start:
    """Where a run starts; every file of the checkpoint that is chosen has been read and compared with its checksum.

    `resume` is `never`, `auto` (the newest that `folder` holds; what a killed run left there is tidied up), or a path
    to a checkpoint, to a folder of checkpoints or to a run directory. Raises CheckpointError where a path leads to no
    checkpoint, where the one it names is damaged, and where all are.
    """
    if resume == "never":
        return Start(None)
    if resume == "auto":
        tidy(folder)
        return newest_whole(folder)
    path = Path(resume)
    if sidecar_path(path).exists():
        return Start(_whole(path, resume))
    for candidate in (path, path / "ckpt", *_named_by(path)):
        found = newest_whole(candidate)
        if found.prefix is not None:
            return found
    raise CheckpointError(
        f"ckpt.resume={resume}: no checkpoint there; give the prefix of one (…/{STEM}-300), a folder that holds some, "
        "or the directory of a run"
    )


def _named_by(run_dir: Path) -> Iterator[Path]:
    """Where the run of this directory wrote its checkpoints, if it was told to elsewhere."""
    try:
        folder = OmegaConf.select(OmegaConf.load(run_dir / "config.yaml"), "ckpt.dir")
    except (OSError, ValueError, YAMLError, OmegaConfBaseException):
        return
    if isinstance(folder, str):
        yield Path(folder)


def newest_whole(folder: Path) -> Start:
    """The newest checkpoint of a folder that is not damaged, None where there is none at all.

    Raises CheckpointError where all are damaged: to start afresh would throw away what could perhaps be repaired.
    """
    damaged: list[tuple[Path, str]] = []
    for prefix in reversed(list_checkpoints(folder)):
        fault = damage(prefix)
        if fault is None:
            notes = [f"checkpoint {bad} is damaged: {why}; using the one before it, {prefix}" for bad, why in damaged]
            return Start(prefix, tuple(notes))
        damaged.append((prefix, fault))
    if damaged:
        faults = "; ".join(f"{bad.name}: {why}" for bad, why in damaged)
        raise CheckpointError(
            f"no checkpoint in {folder} is whole ({faults}): bring one back, or start afresh with ckpt.resume=never"
        )
    return Start(None)


def _whole(prefix: Path, resume: str) -> Path:
    fault = damage(prefix)
    if fault is None:
        return prefix
    try:
        other = newest_whole(prefix.parent).prefix
    except CheckpointError:
        other = None
    remedy = f"the newest whole one beside it: ckpt.resume={other}" if other else "no other beside it is whole"
    raise CheckpointError(f"ckpt.resume={resume}: this checkpoint is damaged: {fault}; {remedy}")
