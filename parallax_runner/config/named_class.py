"""Finds a class by the name that a configuration gives it: a built-in one, another package's, or a dotted path."""

import importlib
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points


def find_class(
    name: str, *, built_in: Mapping[str, str], group: str, base: str, other_names: Sequence[str] = ()
) -> type:
    """The class of this name: of `built_in`, which has dotted paths by names; of another package's entry points of
    `group`; or of the dotted path that the name itself is. `base` is the dotted path of the class that it extends: a
    path, since stages of the program that come later have it. A message lists `other_names` too.

    Raises LookupError with a sentence that says what is wrong.
    """
    entries = entry_points(group=group, name=name)
    path = built_in.get(name) or next((entry.value.replace(":", ".") for entry in entries), name)
    module, _, attribute = path.rpartition(".")
    if not module:
        known = ", ".join([*other_names, *known_names(built_in, group)])
        raise LookupError(f"expected one of {known}, or a class as package.module.Class")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # Whatever another package's module raises as it is imported.
        raise LookupError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(found, type) or base not in (f"{one.__module__}.{one.__qualname__}" for one in found.__mro__):
        raise LookupError(f"expected a class that extends {base}")
    return found


def known_names(built_in: Mapping[str, str], group: str) -> list[str]:
    """All names but dotted paths."""
    return [*built_in, *sorted(entry_points(group=group).names - built_in.keys())]
