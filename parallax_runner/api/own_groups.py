"""Rejects overrides of settings that a script determines itself: its model, its data, and the keys that are computed
from the arguments of a call."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from parallax_runner.errors import ConfigError, Setting

# An override such as `model=lm`, `++data.batch_size=8` or `~data`, but not `model_name=mine`.
_OVERRIDE = re.compile(r"[+~]*(?P<key>(?:model|data)(?:\.[\w.]+)?)(?:@[^=]*)?(?:=|$)")


def check_own_groups(lines: Iterable[str], function: str, usable: Collection[str] = ()) -> None:
    """Raises ConfigError for an override of the model or the data in `lines`, because it would have no effect or would
    replace a value that `function` has set. `usable` contains the keys of these groups that can be set nevertheless."""
    but = f"; in these groups, only {_listed(usable)} can be set" if usable else ""
    for line in lines:
        found = _OVERRIDE.match(line.strip())
        if found is not None and found["key"] not in usable:
            raise ConfigError(f"{function} uses the model and the data of the script").about(
                Setting.typed(line, where=function), remedy=f"remove this override, and change the script{but}"
            )


def check_not_arguments(lines: Iterable[str], function: str, arguments: Mapping[str, str]) -> None:
    """Raises ConfigError if an override in `lines` sets a key that `function` computes. `arguments` maps these keys to
    the arguments that determine them."""
    for line in lines:
        key = line.strip().lstrip("+~").partition("=")[0]
        if key in arguments:
            raise ConfigError(f"{function} computes {key} from {arguments[key]}").about(
                Setting.typed(line, where=function), remedy="remove this override, and change the arguments of the call"
            )


def _listed(names: Collection[str]) -> str:
    """Returns names as an English list, such as "a, b and c"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
