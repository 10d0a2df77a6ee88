"""The user's cache folder, which contains results that later runs reuse. The name of a result depends on all inputs
from which it was computed."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def cache_root(cache_dir: str | None = None) -> Path:
    """Returns the cache folder: `cache_dir` if given, otherwise the user's cache folder."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parallax_runner"


def cache_key(depends_on: Sequence[Any]) -> str:
    """Returns a hash of a list as 32 hexadecimal digits. The list can contain any JSON values."""
    return hashlib.sha256(json.dumps(depends_on).encode()).hexdigest()[:32]
