"""`python -m tests.fuzz --seeds 0:300`, or `--draw 100` for models from a seed that this command draws and prints."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import report
from tests.fuzz.random_model import random_model
from tests.fuzz.session import outcomes_of


def main() -> int:
    """Trains the models, prints the report, and returns 1 if there is a find or if too many models are refused."""
    options = _options()
    seeds = options.seeds
    if options.draw:
        first = secrets.randbelow(10**9)
        print(f"--seeds {first}:{first + options.draw}", flush=True)
        seeds = range(first, first + options.draw)
    folder = Path(options.folder or tempfile.mkdtemp(prefix="fuzz-"))
    folder.mkdir(exist_ok=True)
    started = time.monotonic()
    outcomes = outcomes_of([random_model(seed) for seed in seeds], folder, lambda line: print(line, flush=True))
    (folder / "finds.txt").write_text("\n\n".join(report.in_full(one) for one in report.finds(outcomes)))
    for line in report.lines(outcomes, folder):
        print(line)
    print(f"{time.monotonic() - started:.0f} s; everything is in {folder}")
    has_failed = report.finds(outcomes) or report.refused_share(outcomes) > report.REFUSED_SHARE
    return 1 if has_failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seeds", type=_seeds, help="a range such as 0:300, or a list such as 17,23")
    which.add_argument("--draw", type=int, help="how many models, from a first seed that is drawn and printed")
    parser.add_argument("--folder", help="an empty or new folder for sources and results")
    return parser.parse_args()


def _seeds(text: str) -> list[int]:
    if ":" in text:
        first, _, end = text.partition(":")
        return list(range(int(first), int(end)))
    return [int(seed) for seed in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
