"""Where the project's `conf/` and `models/` are: inside the package in a wheel, beside it in a checkout."""

from pathlib import Path

import parallax_runner

PACKAGE = Path(parallax_runner.__file__).resolve().parent


def conf_dir() -> Path:
    """The `conf/` that belongs to this code. Raises FileNotFoundError if the installation has none."""
    return _folder_of("conf", "config.yaml")


def models_dir() -> Path:
    """The `models/` that belongs to this code. Raises FileNotFoundError if the installation has none."""
    return _folder_of("models", "__init__.py")


def _folder_of(name: str, file: str) -> Path:
    places = (PACKAGE / name, PACKAGE.parent / name)
    for place in places:
        if (place / file).is_file():
            return place
    raise FileNotFoundError(f"{file} is in neither of {places[0]} and {places[1]}: is the installation complete?")
