"""The files in a profile's folder.

`worker_0/run_meta_100.pb` is the serialized RunMetadata of step 100 on rank 0. The other files are derived from these
RunMetadata files.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

TRACE = "trace.json"
HEAVIEST_TEXT, HEAVIEST_TABLE = "heaviest_ops.txt", "heaviest_ops.csv"
SHARES = "shares.csv"
PLOT = "step_time.png"
DERIVED = (TRACE, HEAVIEST_TEXT, HEAVIEST_TABLE, SHARES, PLOT)

_NAME = re.compile(r"worker_(\d+)/run_meta_(\d+)\.pb")


def run_metadata_path(folder: Path, *, rank: int, step: int) -> Path:
    """Returns the path of the RunMetadata file for a rank and a step."""
    return folder / f"worker_{rank}" / f"run_meta_{step}.pb"


def run_metadata_files(folder: Path) -> dict[int, dict[int, Path]]:
    """Returns all RunMetadata files by step and rank, in ascending order."""
    found: dict[int, dict[int, Path]] = defaultdict(dict)
    for path in folder.glob("worker_*/run_meta_*.pb"):
        match = _NAME.fullmatch(path.relative_to(folder).as_posix())
        if match is not None:
            found[int(match[2])][int(match[1])] = path
    return {step: dict(sorted(found[step].items())) for step in sorted(found)}


def artifacts(folder: Path) -> list[Path]:
    """Returns the files and the RunMetadata folders that are logged as artifacts of the run."""
    derived = [folder / name for name in DERIVED if (folder / name).exists()]
    ranks = {path.parent for by_rank in run_metadata_files(folder).values() for path in by_rank.values()}
    return [*derived, *sorted(ranks)]
