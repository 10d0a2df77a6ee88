"""Finds the class that a configuration names: a built-in class, a class that another package registers, or a dotted
path."""

import importlib
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points


def find_class(
    name: str, *, built_in: Mapping[str, str], group: str, base: str, other_names: Sequence[str] = ()
) -> type:
    """Returns the class with this name. The name can be a key in `built_in` (which maps names to dotted paths), the
    name of another package's entry point in `group`, or a dotted path. The class must extend `base`, which is given as
    a dotted path because this module cannot import it. Messages also list `other_names`.

    Raises LookupError with the reason as a sentence.
    """
    path = built_in.get(name) or _registered(name, group) or name
    module, _, attribute = path.rpartition(".")
    if not module:
        known = ", ".join([*other_names, *known_names(built_in, group)])
        raise LookupError(f"expected one of {known}, or a class such as package.module.Class")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # Importing another package's module can raise any exception.
        raise LookupError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(found, type) or base not in (f"{one.__module__}.{one.__qualname__}" for one in found.__mro__):
        raise LookupError(f"expected a class that extends {base}")
    return found


def _registered(name: str, group: str) -> str | None:
    """Returns the dotted path that another package registers under this name, or None if there is none."""
    entries = entry_points(group=group, name=name)
    return next((entry.value.replace(":", ".") for entry in entries), None)


def known_names(built_in: Mapping[str, str], group: str) -> list[str]:
    """Returns all names that are not dotted paths."""
    return [*built_in, *sorted(entry_points(group=group).names - built_in.keys())]
