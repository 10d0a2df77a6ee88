"""`python -m benchmarks.results EXPERIMENT DATA [--modes …] [--rounds N] [--out FOLDER]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from benchmarks import machine
from benchmarks.results import draw, language, ratings, translation
from benchmarks.results.curves import Curve, Places, measure
from benchmarks.results.experiment import MODES, Experiment
from benchmarks.results.report import rows_of, sentences
from benchmarks.runs import RunFailed
from benchmarks.tables import show, tell, write_section

EXPERIMENTS = {one.name: one for one in (*ratings.EXPERIMENTS, *language.EXPERIMENTS, translation.EXPERIMENT)}
ROUNDS = 2


def main(arguments: Sequence[str]) -> int:
    """Trains in each mode, and writes JSON, Markdown and a plot."""
    asked = parse(arguments)
    experiment = EXPERIMENTS[asked.experiment]
    folder = (asked.out or Path("bench") / f"{datetime.now():%Y-%m-%d-%H%M%S}").resolve()
    places = Places(asked.data.resolve(), folder / "files", folder)
    places.files.mkdir(parents=True)
    about = machine.describe()
    facts = experiment.prepare(places.data, places.files)
    curves: list[Curve] = []
    for number in range(asked.rounds):
        tell(f"{experiment.name}: round {number + 1} of {asked.rounds}")
        try:
            curves += measure_round(experiment, asked.modes.split(","), number, places)
        except RunFailed as error:
            tell(f"benchmarks.results: {error}")
            return 1
        write(experiment, about, facts, curves, folder)
    tell(f"written to {folder}")
    return 0


def measure_round(experiment: Experiment, modes: Sequence[str], number: int, places: Places) -> list[Curve]:
    """Returns a curve for each mode. The modes take turns, so that a slow period of the machine affects all of them."""
    curves = []
    for mode in modes:
        tell(f"{experiment.name}: {mode}")
        curves.append(measure(experiment, mode, number, places))
    return curves


def write(
    experiment: Experiment,
    about: dict[str, object],
    facts: dict[str, float],
    curves: Sequence[Curve],
    folder: Path,
) -> None:
    """Writes the results, and shows the table."""
    record = {"experiment": experiment.name, "metric": experiment.metric, "facts": facts}
    written = about | record | {"curves": [one.as_json() for one in curves]}
    (folder / f"{experiment.name}.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    rows = rows_of(curves, experiment.metric)
    told = [f"{machine.sentence(about)}.", *sentences(facts, curves)]
    title = f"{str(about['date'])[:10]}: {experiment.name}"
    write_section(folder / f"{experiment.name}.md", title=title, facts=told, rows=rows)
    draw.draw(curves, experiment.metric, folder / f"{experiment.name}.png")
    show(rows, title)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments. Exits with status 2 if they are invalid."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.results", description=__doc__)
    parser.add_argument("experiment", choices=sorted(EXPERIMENTS))
    about_data = "; ".join(f"{name}: {one.data}" for name, one in EXPERIMENTS.items())
    parser.add_argument("data", type=Path, help=about_data)
    parser.add_argument("--modes", default=",".join(MODES), help=f"modes to train in (default {','.join(MODES)})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"times that each mode trains (default {ROUNDS})")
    parser.add_argument("--out", type=Path, help="a folder that does not exist (default bench/<date>-<time>)")
    asked = parser.parse_args(arguments)
    if not asked.data.exists():
        parser.error(f"{asked.data}: expected a path that exists")
    if asked.out is not None and asked.out.exists():
        parser.error(f"--out {asked.out} already exists: name a new folder")
    if asked.rounds < 1:
        parser.error(f"--rounds {asked.rounds}: expected 1 or more")
    unknown = set(asked.modes.split(",")) - set(MODES)
    if unknown:
        parser.error(f"--modes: expected some of {', '.join(MODES)}, got {', '.join(sorted(unknown))}")
    return asked


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
