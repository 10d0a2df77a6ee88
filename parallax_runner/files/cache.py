"""The user's cache folder: results that later runs use again, each named by all that it depends on."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def cache_root(cache_dir: str | None = None) -> Path:
    """The folder for what is kept between runs: `cache_dir`, or by default the user's."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parallax_runner"


def cache_key(depends_on: Sequence[Any]) -> str:
    """A name that equal lists share and other lists do not; whatever JSON can write may be in them."""
    return hashlib.sha256(json.dumps(depends_on).encode()).hexdigest()[:32]
