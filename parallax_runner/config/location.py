"""Locates the project's `conf/` and `models/`: inside the package in a wheel, next to it in a checkout."""

from pathlib import Path

import parallax_runner

PACKAGE = Path(parallax_runner.__file__).resolve().parent


def conf_dir() -> Path:
    """Returns the path of this installation's `conf/`. Raises FileNotFoundError if it is missing."""
    return _folder_of("conf", "config.yaml")


def models_dir() -> Path:
    """Returns the path of this installation's `models/`. Raises FileNotFoundError if it is missing."""
    return _folder_of("models", "__init__.py")


def _folder_of(name: str, file: str) -> Path:
    places = (PACKAGE / name, PACKAGE.parent / name)
    for place in places:
        if (place / file).is_file():
            return place
    raise FileNotFoundError(f"{file} is in neither {places[0]} nor {places[1]}: is the installation complete?")
