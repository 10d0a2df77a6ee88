"""The file that stores a search: the settings that the search applies to, its measurements, and its choice once the
search is finished."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallax_runner.files.regular import read_regular
from parallax_runner.files.whole import write_whole
from parallax_runner.search.trial import Choice, Curve, Trial

FORMAT = 2
FOLDER = "search"
FILE_NAME = "choice.json"


@dataclass(frozen=True)
class Record:
    """The state of a search. `choice` is None until the search is finished."""

    trials: tuple[Trial, ...] = ()
    choice: Choice | None = None


def in_run(run_dir: Path) -> Path:
    """Returns the path of the file for a run's own search."""
    return run_dir / FOLDER / FILE_NAME


def in_cache(cache: Path, made_for: Mapping[str, Any]) -> Path:
    """Returns the path of the file for a search that all runs with the same settings share."""
    key = hashlib.sha256(json.dumps([FORMAT, made_for], sort_keys=True).encode()).hexdigest()[:32]
    return cache / "partitions" / f"{key}.json"


def save(trials: Sequence[Trial], choice: Choice | None, made_for: Mapping[str, Any], path: Path) -> None:
    """Writes the file of a search. `made_for` contains JSON values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    chosen = None if choice is None else {key: value for key, value in dataclasses.asdict(choice).items()}
    if chosen is not None:
        del chosen["trials"]  # stored separately
    fields = {"made_for": dict(made_for), "trials": [dataclasses.asdict(trial) for trial in trials], "choice": chosen}
    write_whole(path, json.dumps(fields, indent=1) + "\n")


def load(made_for: Mapping[str, Any], path: Path) -> Record:
    """Loads an earlier search. Returns an empty record if there is no readable file, or if the earlier search is for
    other settings."""
    try:
        fields = json.loads(read_regular(path))
        if fields["made_for"] != made_for:
            return Record()
        trials = tuple(Trial(one["partitions"], tuple(one["step_secs"])) for one in fields["trials"])
        chosen = fields["choice"]
        if chosen is None:
            return Record(trials)
        curve = None if chosen["curve"] is None else Curve(**chosen["curve"])
        return Record(trials, Choice(**chosen | {"trials": trials, "curve": curve}))
    except (OSError, ValueError, KeyError, TypeError):  # there is no file, or it is damaged
        return Record()
