"""`python -m benchmarks.results EXPERIMENT DATA [--modes …] [--out FOLDER]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from benchmarks import machine
from benchmarks.results import draw
from benchmarks.results.curves import Curve, largest_difference, measure
from benchmarks.results.experiments import EXPERIMENTS, MODES
from benchmarks.runs import RunFailed
from benchmarks.tables import Rows, tell, write_section


def main(arguments: Sequence[str]) -> int:
    """Trains in each mode, and writes JSON, Markdown and a plot."""
    asked = parse(arguments)
    experiment = EXPERIMENTS[asked.experiment]
    folder = (asked.out or Path("bench") / f"{datetime.now():%Y-%m-%d-%H%M%S}").resolve()
    files = folder / "files"
    files.mkdir(parents=True)
    about = machine.describe()
    facts = experiment.prepare(asked.data.resolve(), files)
    curves: list[Curve] = []
    for mode in asked.modes.split(","):
        tell(f"{experiment.name}: {mode}")
        try:
            curves.append(measure(experiment, mode, asked.data.resolve(), files, folder))
        except RunFailed as error:
            tell(f"benchmarks.results: {error}")
    if not curves:
        return 1
    difference = largest_difference(curves)
    record = {
        "facts": facts,
        "metric": experiment.metric,
        "difference": difference,
        "curves": [one.as_json() for one in curves],
    }
    (folder / f"{experiment.name}.json").write_text(json.dumps(about | record, indent=1) + "\n", encoding="utf-8")
    told = [f"{name} {value:.6g}." for name, value in facts.items()]
    between = f"Largest relative difference of a mode from {curves[0].mode}, after any validation: {difference:.2g}."
    write_section(
        folder / f"{experiment.name}.md",
        title=f"{about['date'][:10]}: {experiment.name}",
        facts=[f"{machine.sentence(about)}.", *told, between],
        rows=rows_of(curves, experiment.metric),
    )
    draw.draw(curves, experiment.metric, folder / f"{experiment.name}.png", machine.sentence(about))
    tell(f"written to {folder}")
    return 0 if len(curves) == len(asked.modes.split(",")) else 1


def rows_of(curves: Sequence[Curve], metric: str) -> Rows:
    """Returns a row for each mode."""
    head = ("mode", f"first {metric}", f"best {metric}", "after steps", f"last {metric}", "seconds", "examples/s")
    body = []
    for curve in curves:
        best, last = min(curve.points, key=lambda point: point.value), curve.points[-1]
        numbers = (curve.points[0].value, best.value, best.step, last.value, last.secs, curve.examples_per_sec)
        formats = (".5g", ".5g", "d", ".5g", ".0f", ",.0f")
        body.append((curve.mode, *(format(one, how) for one, how in zip(numbers, formats, strict=True))))
    return Rows(head, tuple(body))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments. Exits with status 2 if they are invalid."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.results", description=__doc__)
    parser.add_argument("experiment", choices=sorted(EXPERIMENTS))
    parser.add_argument("data", type=Path, help="the wheel of RecBole for ratings, otherwise a folder with the files")
    parser.add_argument("--modes", default=",".join(MODES), help=f"modes to train in (default {','.join(MODES)})")
    parser.add_argument("--out", type=Path, help="a folder that does not exist (default bench/<date>-<time>)")
    asked = parser.parse_args(arguments)
    if not asked.data.exists():
        parser.error(f"{asked.data}: expected a path that exists")
    if asked.out is not None and asked.out.exists():
        parser.error(f"--out {asked.out} already exists: name a new folder")
    unknown = set(asked.modes.split(",")) - set(MODES)
    if unknown:
        parser.error(f"--modes: expected some of {', '.join(MODES)}, got {', '.join(sorted(unknown))}")
    return asked


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
