"""Values that a configuration reads from environment variables, such as `${oc.env:PASSWORD}`.

Such a value may be a secret. Whatever is written (config.yaml, journal, parameters, job scripts) contains the
interpolation. The driver resolves it, and sends the value to the processes of the run with their environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from omegaconf import MISSING, Container, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException
from omegaconf.resolvers import oc

# The variable with which the driver sends the values to the processes of a run. It is never on a command line.
VARIABLE = "PARALLAX_CONFIG_VALUES"
RESOLVER = "oc.env"

Path = tuple[str | int, ...]  # the keys and list positions that lead to a value


class FromEnvironment(NamedTuple):
    """A value that depends on the environment: the interpolation as written, the value, and the variables without which
    it cannot be resolved."""

    written: str
    value: Any
    needs: tuple[str, ...]


def found_in(config: Container) -> dict[Path, FromEnvironment]:
    """Returns the values of a configuration that depend on environment variables, directly or through other keys.
    Values that cannot be resolved are omitted."""
    found = {}
    for path, parent, key in _interpolations(config):
        with contextlib.suppress(OmegaConfBaseException):
            value, names = _resolved(parent, key)
            if names is not None:
                found[path] = FromEnvironment(str(parent._get_node(key)._value()), value, names)
    return found


def resolve(config: Container) -> None:
    """Replaces each interpolation in a configuration by its value. Unlike OmegaConf's own function, this one resolves
    each interpolation once: a value may contain `${`, as some passwords do. Raises OmegaConfBaseException."""
    values: dict[Path, Any] = {}
    for path, parent, key in _interpolations(config):
        try:
            values[path] = _plain(parent[key])
        except InterpolationToMissingValueError:
            values[path] = MISSING
    for path, value in values.items():
        _put(config, path, value)


def variables_of(found: Mapping[Path, FromEnvironment]) -> list[str]:
    """Returns the names of the variables without which the values cannot be resolved."""
    return sorted({name for one in found.values() for name in one.needs})


def as_written(content: Any, found: Mapping[Path, FromEnvironment]) -> Any:
    """Returns a configuration's dictionaries and lists, in which each value that depends on the environment is replaced
    by its interpolation. A value that has been changed since it was found is kept."""
    for path, one in found.items():
        content = _replaced(content, path, one)
    return content


def for_processes(content: Any, found: Mapping[Path, FromEnvironment]) -> dict[str, str]:
    """Returns the environment variable with the values for the processes of a run. `content` are the dictionaries and
    lists of the configuration. The variable is also set if there are no values, because this process may have inherited
    the variable of another run."""
    values = [[list(path), one.value] for path, one in found.items() if _value_at(content, path) == one.value]
    return {VARIABLE: json.dumps(values)}


def take_values(config: Container, environ: Mapping[str, str] = os.environ) -> None:
    """Puts the values that the driver has sent in place of the interpolations of a configuration that was read from
    config.yaml."""
    for path, value in json.loads(environ.get(VARIABLE) or "[]"):
        _put(config, tuple(path), value)


def escaped(value: Any) -> Any:
    """Returns a value in which OmegaConf finds no interpolation, although a string in it may contain `${`."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + "\\${", value)
    if isinstance(value, Mapping):
        return {key: escaped(inner) for key, inner in value.items()}
    return [escaped(inner) for inner in value] if isinstance(value, list | tuple) else value


def _interpolations(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """Yields the path, the parent and the key of each value that is an interpolation."""
    if not isinstance(node, DictConfig | ListConfig) or node._is_none() or node._is_missing():
        return
    keys: Sequence[Any] = list(node.keys()) if isinstance(node, DictConfig) else range(len(node))
    for key in keys:
        child: Any = node._get_node(key)
        if child is not None and child._is_interpolation():
            yield (*path, key), node, key
        else:
            yield from _interpolations(child, (*path, key))


@contextlib.contextmanager
def _environment_watched() -> Iterator[list[tuple[str, bool]]]:
    """Yields a list to which each use of `oc.env` adds the name of the variable, and whether there is a default."""
    used: list[tuple[str, bool]] = []

    def watched(*given: Any) -> Any:
        used.append((str(given[0]), len(given) > 1))
        return oc.env(*given)

    OmegaConf.register_new_resolver(RESOLVER, watched, replace=True)
    try:
        yield used
    finally:
        OmegaConf.register_new_resolver(RESOLVER, oc.env, replace=True)


def _resolved(parent: Any, key: Any) -> tuple[Any, tuple[str, ...] | None]:
    """Returns a value, and the variables without which it cannot be resolved, or None if it does not depend on the
    environment."""
    with _environment_watched() as used:
        value = _plain(parent[key])
    needs = tuple(dict.fromkeys(name for name, has_default in used if not has_default))
    return value, needs if used else None


def _put(config: Any, path: Path, value: Any) -> None:
    *parents, key = path
    for one in parents:
        config = config._get_node(one)
    config[key] = escaped(value)


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _value_at(content: Any, path: Path) -> Any:
    for key in path:
        try:
            content = content[key]
        except (KeyError, IndexError, TypeError):
            return None
    return content


def _replaced(content: Any, path: Path, one: FromEnvironment) -> Any:
    if not path:
        return one.written if content == one.value else content
    key, *rest = path
    if isinstance(content, Mapping) and key in content:
        return {**content, key: _replaced(content[key], tuple(rest), one)}
    if isinstance(content, list) and isinstance(key, int) and key < len(content):
        return [*content[:key], _replaced(content[key], tuple(rest), one), *content[key + 1 :]]
    return content
