"""A search as a file: what it was made for, what it measured and chose. A run that is resumed reads it back."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallax_runner.search.trial import Choice, Curve, Trial

FOLDER = "search"
FILE_NAME = "choice.json"


def save(choice: Choice, made_for: Mapping[str, Any], run_dir: Path) -> Path:
    """Writes `run_dir/search/choice.json`, whole or not at all; `made_for` is JSON."""
    path = run_dir / FOLDER / FILE_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{FILE_NAME}.{os.getpid()}")
    fields = {"made_for": dict(made_for), **dataclasses.asdict(choice)}
    partial.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def load(made_for: Mapping[str, Any], run_dir: Path) -> Choice | None:
    """What an earlier search in this folder chose; None where there was none, or for another graph or cluster."""
    try:
        fields = json.loads((run_dir / FOLDER / FILE_NAME).read_text(encoding="utf-8"))
        if fields["made_for"] != made_for:
            return None
        trials = tuple(Trial(one["partitions"], tuple(one["step_secs"])) for one in fields["trials"])
        curve = None if fields["curve"] is None else Curve(**fields["curve"])
        return Choice(fields["partitions"], trials, curve)
    except (OSError, ValueError, KeyError, TypeError):  # none, or not one of this version's
        return None
