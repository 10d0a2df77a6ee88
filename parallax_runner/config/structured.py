"""The schema in the form that OmegaConf needs: mutable, with `list` and `dict`."""

import dataclasses
from collections.abc import Iterator, Mapping
from types import GenericAlias
from typing import Any, cast, get_args, get_origin

from parallax_runner.config.schema import RunConfig, keys_of


def mutable(schema: type[Any]) -> type[Any]:
    """Returns a mutable dataclass with the name, fields, defaults and metadata of a frozen dataclass."""
    return dataclasses.make_dataclass(schema.__name__, [_field(entry) for entry in keys_of(schema)])


def _field(entry: "dataclasses.Field[Any]") -> tuple[str, Any, Any]:
    if dataclasses.is_dataclass(entry.type):
        group = mutable(cast(type[Any], entry.type))
        return entry.name, group, dataclasses.field(default_factory=group, metadata=entry.metadata)
    default: Any = entry.default
    if isinstance(default, tuple):
        return entry.name, _known(entry.type), dataclasses.field(default_factory=list, metadata=entry.metadata)
    made = dataclasses.field(default=default, default_factory=entry.default_factory, metadata=entry.metadata)
    return entry.name, _known(entry.type), made


def _known(kind: Any) -> Any:
    """Returns OmegaConf's equivalent of a type. OmegaConf does not support unions that include a list."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        return GenericAlias(list, arguments[:1])
    if origin is Mapping:
        return GenericAlias(dict, arguments)
    group = group_in(kind)
    if group is not None:
        return mutable(group) | None
    return Any if any(get_origin(one) is tuple for one in arguments) else kind


def group_in(kind: Any) -> type[Any] | None:
    """Returns the dataclass in the type of an optional group, or None for any other type."""
    return next((cast(type[Any], one) for one in get_args(kind) if dataclasses.is_dataclass(one)), None)


def optional_groups(schema: Any, prefix: str = "") -> Iterator[tuple[str, type[Any]]]:
    """Yields the key and the dataclass of each group that can be null, such as `comm.routes`."""
    for entry in dataclasses.fields(schema):
        key, group = f"{prefix}{entry.name}", group_in(entry.type)
        if group is not None:
            yield key, group
        elif dataclasses.is_dataclass(entry.type):
            yield from optional_groups(entry.type, f"{key}.")


STRUCTURED = mutable(RunConfig)
