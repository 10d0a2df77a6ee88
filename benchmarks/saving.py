"""Measures how fast ranks save and restore a table together, in turn with `tf.train.Saver`.

    .venv/bin/python -m benchmarks.saving --rows 2000000 --ranks 2

Both sides check that values are finite, flush files to disk, read values back, and compute SHA-256 checksums. The
ratios are those of neighbouring measurements, so that other work on the machine slows both sides.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.launched_ranks import run_ranks
from benchmarks.saving_rank import RESTORE, SAVE


def main() -> int:
    """Measures, and prints medians, ratios, and the parts of a save on each rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--copy-bytes", type=int, help="ckpt.copy_bytes (default: that of a run)")
    order = vars(parser.parse_args())
    folder = Path(tempfile.mkdtemp(prefix="saving-", dir="."))
    try:
        found = measure(folder.resolve(), order)
    finally:
        shutil.rmtree(folder)
    for rank, of_rank in enumerate(found):
        _tell(rank, of_rank)
    return 0


def measure(folder: Path, order: dict[str, Any]) -> list[list[dict[str, list[float]]]]:
    """Returns what each rank has measured. Raises RuntimeError if a rank fails."""
    run_ranks("benchmarks.saving_rank", folder, order)
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(order["ranks"])]


def _tell(rank: int, found: list[dict[str, list[float]]]) -> None:
    for name in (SAVE, RESTORE) if rank == 0 else ():
        ratios = [one[f"{name} alone"][0] / one[name][0] for one in found]
        shown = " ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{name}: {statistics.median(ratios):.2f} of tf.train.Saver ({shown})")
    for part in dict.fromkeys(part for one in found for part in one):
        wall, user, kernel = (statistics.median(one.get(part, (0, 0, 0))[clock] for one in found) for clock in range(3))
        print(f"rank {rank}  {part:22} {wall:6.2f} s, CPU {user:5.2f} s + {kernel:5.2f} s in the kernel")


if __name__ == "__main__":
    sys.exit(main())
