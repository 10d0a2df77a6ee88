"""Refuses overrides of the groups `model` and `data` in a script that has its own model and data."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from parallax_runner.errors import ConfigError

# An override such as `model=lm`, `++data.batch_size=8` or `~data`, but not `model_name=mine`.
_OVERRIDE = re.compile(r"[+~]*(?P<key>(?:model|data)(?:\.[\w.]+)?)(?:@[^=]*)?(?:=|$)")


def check_own_groups(lines: Iterable[str], function: str, usable: Collection[str] = ()) -> None:
    """Raises ConfigError for an override of the model or the data in `lines`, because it would have no effect, or would
    replace what `function` has set. `usable` contains the keys that can be set nevertheless."""
    but = f"; in these groups, only {' and '.join(usable)} can be set" if usable else ""
    for line in lines:
        found = _OVERRIDE.match(line.strip())
        if found is not None and found["key"] not in usable:
            raise ConfigError(
                f"{line} ({function}): {function} uses the model and the data of the script; remove this override, and "
                f"change the script{but}"
            )
