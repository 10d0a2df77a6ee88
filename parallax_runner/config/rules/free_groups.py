"""The arguments in `model`, `data` and `optimizer`. The file of the selected choice declares them, with the types of
their values."""

import re
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from parallax_runner.config.explain import known_keys, refusal, unknown_key, written
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import FREE_GROUPS

# The types of OmegaConf's values, and their names, by the type of a value in a file.
KINDS: dict[type, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("an integer", (int,)),
    float: ("a number", (int, float)),
    str: ("a string", (str,)),
    list: ("a list", (ListConfig,)),
    dict: ("a mapping", (DictConfig,)),
}


def check_free_groups(composed: DictConfig, origins: Origins) -> None:
    """Raises ConfigError if `model`, `data` or `optimizer` has a key that its own file lacks, or a value whose type
    differs from the type in that file."""
    for group in FREE_GROUPS:
        _check_keys(composed, group, origins)
        _check_target(composed, group, origins)


def _check_keys(config: DictConfig, group: str, origins: Origins) -> None:
    declared = _declared(group, origins)
    known = [*declared, *origins.added()]
    for key in known_keys(config):
        if not key.startswith(f"{group}."):
            continue
        if key not in known and not _is_in_open_mapping(key, declared):
            raise unknown_key(key, origins, list(declared) or known_keys(config))
        _check_kind(config, key, declared.get(key), origins)


def _is_in_open_mapping(key: str, declared: Mapping[str, Any]) -> bool:
    """Returns whether the key is at any depth of a value that is an empty mapping or null in the group's file, so only
    its function knows what it accepts."""
    while "." in key:
        key = key.rpartition(".")[0]
        if key in declared:
            return declared[key] is None or declared[key] == {}
    return False


def _declared(group: str, origins: Origins) -> dict[str, Any]:
    """Returns the keys of a group with the values in its own files."""
    declared: dict[str, Any] = {}
    for file in origins.files:
        if file.group == group:
            declared.update({key: value for key, value in file.values.items() if key.startswith(f"{group}.")})
    return declared


def _check_target(config: DictConfig, group: str, origins: Origins) -> None:
    if not isinstance(OmegaConf.select(config, f"{group}._target_"), str):
        raise refusal(f"{group}._target_", origins, "expected the dotted name of a function or class")
    if OmegaConf.select(config, f"{group}._partial_"):
        needed = "the function is called once, with all of its arguments; omit this key"
        raise refusal(f"{group}._partial_", origins, needed, value=True)


def _check_kind(config: DictConfig, key: str, example: Any, origins: Origins) -> None:
    """Raises ConfigError if a value's type differs from its type in the group's own file. null matches every type."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent)
    if OmegaConf.is_missing(node, name):
        raise refusal(key, origins, f"this key has no value; add {key}=VALUE", value="???")
    value, example = node[name], _resolved(config, example)
    if value is None or example is None:
        return
    title, kind = KINDS.get(type(example), KINDS[dict])
    is_of_kind = isinstance(value, kind)
    if isinstance(value, bool):  # Python's bool is an int
        is_of_kind = bool in kind
    if not is_of_kind:
        raise refusal(key, origins, f"expected {title}, such as the default {written(example)}", value=value)


def _resolved(config: DictConfig, example: Any) -> Any:
    """Returns the value of a key in a file, or of the key that the value refers to. Returns None if it has no type:
    null, a missing value, or an interpolation within a string."""
    reference = re.fullmatch(r"\$\{([\w.]+)\}", str(example))
    if reference is not None:
        example = OmegaConf.select(config, reference[1])
        if OmegaConf.is_config(example):
            example = OmegaConf.to_container(example)
    if example == "???":
        return None
    is_interpolation = isinstance(example, str) and "${" in example
    return None if is_interpolation else example
