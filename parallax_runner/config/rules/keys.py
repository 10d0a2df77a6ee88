"""The keys and values that the schema allows."""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_origin

from omegaconf import DictConfig, OmegaConf

from parallax_runner.config.explain import describe, known_keys, refusal, unknown_key
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import FREE_GROUPS
from parallax_runner.config.structured import STRUCTURED, group_in, optional_groups


def check_keys(composed: DictConfig, origins: Origins) -> None:
    """Raises ConfigError for a key that the schema lacks, a key without a value, or a value out of its range."""
    _check_fields(composed, STRUCTURED, "", origins, composed)


def _check_fields(node: Any, schema: Any, prefix: str, origins: Origins, whole: DictConfig) -> None:
    """Checks the keys of `node`, a part of the configuration `whole`, against `schema`."""
    fields = {entry.name: entry for entry in dataclasses.fields(schema)}
    for name in node:
        key = f"{prefix}{name}"
        if name not in fields:
            raise unknown_key(_set_by_user(key, origins), origins, _known(whole, origins))
        entry = fields[name]
        if OmegaConf.is_missing(node, name):
            raise refusal(key, origins, f"this key has no value; {describe(entry)}", value="???")
        value = node[name]
        if value is None:
            continue
        group = entry.type if dataclasses.is_dataclass(entry.type) else group_in(entry.type)
        if group is not None:
            _check_fields(value, group, f"{key}.", origins, whole)
        elif get_origin(entry.type) is not dict and not _is_in_range(value, entry.metadata):
            raise refusal(key, origins, f"{describe(entry)}{_remark(value, entry.metadata)}", value=value)


def _remark(value: Any, metadata: Mapping[str, Any]) -> str:
    """Returns the end of a message about a value that does not fit: what replaces a value of earlier versions, or how a
    file must contain «on» and «off». Returns an empty string for all other values."""
    replacement = metadata.get("replaced", {}).get(str(value))
    if replacement is not None:
        return f"; {replacement}"
    if value in ("True", "False") and "off" in metadata.get("choices", ()):
        return "; put on and off in quotes in a file, where YAML reads them as true and false"
    return ""


def _set_by_user(key: str, origins: Origins) -> str:
    """Returns the key that the user has set: +trian.steps=5 sets only a key inside of `trian`."""
    if origins.of(key) is not None:
        return key
    return [key, *origins.given(key)][-1]


def _known(whole: DictConfig, origins: Origins) -> list[str]:
    """Returns the keys of a configuration that the schema or a file of `model`, `data` or `optimizer` declares. The
    configuration may also have unknown keys, which the user added with a plus sign."""
    declared = {key for file in origins.files if file.group in FREE_GROUPS for key in file.values}
    declared.update(known_keys(OmegaConf.structured(STRUCTURED)))
    for parent, group in optional_groups(STRUCTURED):
        declared.update(f"{parent}.{entry.name}" for entry in dataclasses.fields(group))
    return [key for key in known_keys(whole) if key in declared]


def _is_in_range(value: Any, metadata: Mapping[str, Any]) -> bool:
    if "choices" in metadata and value not in metadata["choices"]:
        return False
    if "minimum" in metadata and value < metadata["minimum"]:
        return False
    if "above" in metadata and value <= metadata["above"]:
        return False
    return "maximum" not in metadata or value <= metadata["maximum"]
