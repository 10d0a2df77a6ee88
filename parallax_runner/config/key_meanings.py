"""Collects every key of the schema with its type, unit and meaning, for the reference in docs/ and for `--help GROUP`.

The meaning of a key is the comment next to its value: in the file of a choice in `conf/`, or in `schema.py` if the
default is there.
"""

from __future__ import annotations

import dataclasses
import json
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

import yaml
from omegaconf import DictConfig, OmegaConf

from parallax_runner.config.comments import class_comments, key_comments
from parallax_runner.config.explain import describe
from parallax_runner.config.schema import RunConfig, keys_of
from parallax_runner.config.structured import STRUCTURED, group_in

SCHEMA_GROUPS = {
    entry.name: entry.type for entry in dataclasses.fields(RunConfig) if dataclasses.is_dataclass(entry.type)
}
IN_CONFIG_FILE = (
    "sweep",
    "read",
    "predict",
    "update",
    "simulate",
)  # groups whose values are in conf/config.yaml itself


@dataclasses.dataclass(frozen=True)
class KeyMeaning:
    """A key of a group, without the group's name."""

    name: str
    kind: str
    unit: str
    meaning: str


def keys_of_group(group: str, texts: Sequence[str]) -> list[KeyMeaning]:
    """Returns the keys of a group in the schema. `texts` are the contents of the choices' files. A meaning is looked up
    in the first text, then in the schema, then in the other texts."""
    first, *others = [key_comments(text) for text in texts]
    comments = ChainMap(first, class_comments(SCHEMA_GROUPS[group]), *others)
    return [_key(name, entry, own, comments) for name, entry, own in _leaves(*_types(group))]


def keys_of_config_file(text: str) -> list[KeyMeaning]:
    """Returns the keys in `conf/config.yaml`, given the file's text."""
    comments = key_comments(text)
    found = []
    for entry, own in _entries(STRUCTURED, RunConfig):
        if entry.name in IN_CONFIG_FILE:
            leaves = _leaves(*_types(entry.name), f"{entry.name}.")
            found += [_key(name, inner, inner_own, comments) for name, inner, inner_own in leaves]
        elif entry.name not in SCHEMA_GROUPS and entry.name in comments:
            found.append(_key(entry.name, entry, own, comments))
    return found


def node_of(config: DictConfig, key: str) -> Any:
    """Returns the node of a dotted key, or None if the key is inside a group that is null."""
    *parents, name = key.split(".")
    for parent in parents:
        config = config[parent]
        if config is None:
            return None
    return config._get_node(name)


def value_of(node: Any) -> str:
    """Returns a node's value as one line of YAML. Interpolations are not resolved."""
    value = OmegaConf.to_container(node) if OmegaConf.is_config(node) else node._value() if node is not None else None
    return _in_yaml(value)


def _in_yaml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(map(_in_yaml, value)) + "]"
    if isinstance(value, str) and (value.startswith("${") or (value and yaml.safe_load(value) == value)):
        return value
    return json.dumps(value)


def _types(group: str) -> tuple[Any, Any]:
    return STRUCTURED.__dataclass_fields__[group].type, SCHEMA_GROUPS[group]


def _entries(kind: Any, frozen: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each field of OmegaConf's dataclass together with the same field of the frozen dataclass."""
    yield from zip(dataclasses.fields(kind), keys_of(frozen), strict=True)


def _leaves(kind: Any, frozen: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    for entry, own in _entries(kind, frozen):
        group = entry.type if dataclasses.is_dataclass(entry.type) else group_in(entry.type)
        own_group = own.type if dataclasses.is_dataclass(own.type) else group_in(own.type)
        if group is not None:
            yield from _leaves(group, own_group, f"{prefix}{entry.name}.")
        else:
            yield f"{prefix}{entry.name}", entry, own


def _key(name: str, entry: Any, frozen: Any, comments: Mapping[str, str]) -> KeyMeaning:
    return KeyMeaning(name, _kind(entry, frozen), entry.metadata.get("unit", ""), comments.get(name, ""))


def _kind(entry: Any, frozen: Any) -> str:
    """Returns the type as error messages describe it. OmegaConf has no type for "a string or a list of strings"."""
    types = get_args(frozen.type)
    if any(get_origin(one) is tuple for one in types):
        return "a string or a list of strings" + (", or null" if type(None) in types else "")
    return describe(entry).removeprefix("expected ")
