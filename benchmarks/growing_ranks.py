"""Measures the steps of growing tables on several ranks beside those of a static table, with and without rules.

    python -m benchmarks.growing_ranks --ranks 2 --steps 200

All ranks train the same tables in turn on the same stream of Zipf keys: a static table, which gets the keys modulo its
rows; a table that grows; one that admits keys, one that evicts keys, and one that does both. Each has the rows and the
optimizer of the others, and the ranks exchange rows of all of them (comm=sharded). The numbers are medians over the
steps of rank 0, without and with an eviction at their end, and medians of the ratios to the static table in the same
step.
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

from benchmarks.growing_rank import STATIC
from benchmarks.launched_ranks import run_ranks


def main() -> int:
    """Measures, and prints a line for each table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16_384, help="keys of a rank in a step")
    parser.add_argument("--capacity", type=int, default=2_000_000)
    parser.add_argument("--columns", type=int, default=16)
    parser.add_argument("--exponent", type=float, default=1.1)
    parser.add_argument("--min-count", type=int, default=2)
    parser.add_argument("--unused-steps", type=int, default=40)
    parser.add_argument("--every-steps", type=int, default=20)
    order = vars(parser.parse_args())
    folder = Path(tempfile.mkdtemp(prefix="growing-", dir="."))
    try:
        found = measured(folder.resolve(), order)
    finally:
        shutil.rmtree(folder)
    for name, steps in found.items():
        for line in lines_of(name, steps, found[STATIC]):
            print(line, flush=True)
    return 0


def measured(folder: Path, order: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Returns the steps of each table on rank 0. Raises RuntimeError if a rank fails."""
    run_ranks("benchmarks.growing_rank", folder, order)
    found: dict[str, list[dict[str, Any]]] = json.loads((folder / "rank_0.json").read_text())
    return found


def lines_of(name: str, steps: list[dict[str, Any]], static: list[dict[str, Any]]) -> list[str]:
    """Returns a line about the steps without an eviction, and one about those with an eviction."""
    lines = []
    for evicts in (False, True):
        pairs = [pair for pair in zip(steps, static, strict=True) if pair[0]["evicts"] is evicts]
        if not pairs:
            continue
        texts = [_text(pairs, clock) for clock in ("secs", "cpu_secs")]
        kind = "with an eviction" if evicts else ""
        keys = f"{steps[-1]['keys']:,} keys on rank 0 at the end"
        lines.append(f"{name:18} {kind:16} {len(pairs):4} steps  time {texts[0]}  CPU {texts[1]}  {keys}")
    return lines


def _text(pairs: list[tuple[dict[str, Any], dict[str, Any]]], clock: str) -> str:
    """Returns the median of a clock, and the quartiles of its ratios."""
    median_ms = 1000 * statistics.median(one[clock] for one, _ in pairs)
    ratios = [one[clock] / other[clock] for one, other in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return f"{median_ms:7.1f} ms, ratio {middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    sys.exit(main())
