"""Where the project's `conf/` is."""

from pathlib import Path

import parallax_runner


def conf_dir() -> Path:
    """The `conf/` that belongs to this code: inside the package in a wheel, beside it in a checkout."""
    package = Path(parallax_runner.__file__).resolve().parent
    places = (package / "conf", package.parent / "conf")
    for place in places:
        if (place / "config.yaml").is_file():
            return place
    raise FileNotFoundError(f"config.yaml is in neither of {places[0]} and {places[1]}: is the installation complete?")
