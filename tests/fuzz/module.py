"""Writes and imports the sources of random models. Does not import TensorFlow."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from tests.fuzz.random_model import RandomModel, Segment

LIST = "models.json"


def source_path(folder: Path, seed: int) -> Path:
    """Returns the path of a model's source."""
    return folder / f"seed_{seed}.py"


def write_models(folder: Path, models: list[RandomModel]) -> None:
    """Writes the sources, and the list that `read_models` reads."""
    for model in models:
        source_path(folder, model.seed).write_text(model.source, encoding="utf-8")
    (folder / LIST).write_text(json.dumps([asdict(model) for model in models]), encoding="utf-8")


def read_models(folder: Path) -> list[RandomModel]:
    """Returns the models of `write_models`."""
    found = []
    for fields in json.loads((folder / LIST).read_text(encoding="utf-8")):
        fields["segments"] = tuple(Segment(**segment) for segment in fields["segments"])
        found.append(RandomModel(**fields | {"labels": tuple(fields["labels"])}))
    return found


def imported(folder: Path, seed: int) -> ModuleType:
    """Imports a model's source from its file, so that AutoGraph finds it."""
    spec = importlib.util.spec_from_file_location(f"seed_{seed}", source_path(folder, seed))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
