"""Converts between Keras' (x, y, sample_weight) and named features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from parallax_runner.errors import DataError

# The name of a feature, a tuple of names, a mapping from keys to names, or None if the part is missing.
Names = str | tuple["Names", ...] | Mapping[str, "Names"] | None
PARTS = ("x", "y", "sample_weight")


@dataclass(frozen=True)
class BatchStructure:
    """The position of each feature in a batch."""

    x: Names
    y: Names = None
    sample_weight: Names = None

    @classmethod
    def of(cls, element: Any) -> BatchStructure:
        """Returns the structure of one element of a dataset. The element is x, (x,), (x, y) or (x, y, sample_weight),
        where each part is a leaf or a nested structure of tuples, lists and dicts.

        A leaf in a dict is named after its key; other leaves are named after their position, such as `x` or `y_0`. If
        two leaves would have the same name, the names of all leaves in dicts are prefixed with the name of the part, as
        in `x_id` and `y_id`.

        Raises DataError for a tuple of any other length.
        """
        parts = _parts(element)
        plain = [_named(part, name, prefix="") for part, name in zip(parts, PARTS, strict=True)]
        names = [name for part in plain for name in leaves(part)]
        if len(set(names)) < len(names):
            plain = [_named(part, name, prefix=f"{name}_") for part, name in zip(parts, PARTS, strict=True)]
        return cls(*plain)

    @property
    def names(self) -> list[str]:
        """The names of all features."""
        return [name for part in (self.x, self.y, self.sample_weight) for name in leaves(part)]

    def as_batch(self, features: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Builds (x, y, sample_weight) from named features. A missing part becomes None."""
        return _picked(self.x, features), _picked(self.y, features), _picked(self.sample_weight, features)

    def flatten(self, element: Any) -> dict[str, Any]:
        """Returns the features of an element that has this structure, keyed by name."""
        found: dict[str, Any] = {}
        for names, part in zip((self.x, self.y, self.sample_weight), _parts(element), strict=True):
            found |= dict(_pairs(names, part))
        return found


def leaves(names: Names) -> Iterator[str]:
    """Yields the names of all leaves in order."""
    if isinstance(names, str):
        yield names
    elif names is not None:
        for inner in names.values() if isinstance(names, Mapping) else names:
            yield from leaves(inner)


def _parts(element: Any) -> tuple[Any, Any, Any]:
    """Splits an element as Keras does: a list is a single x."""
    if not isinstance(element, tuple) or hasattr(element, "_fields"):
        return element, None, None
    if not 1 <= len(element) <= len(PARTS):
        raise DataError(
            f"an element of the data is a tuple of length {len(element)}; expected (x, y) or (x, y, sample_weight)"
        )
    x, y, sample_weight = (*element, None, None)[: len(PARTS)]
    return x, y, sample_weight


def _named(part: Any, name: str, prefix: str) -> Names:
    if part is None:
        return None
    if isinstance(part, Mapping):
        return {key: _named(inner, f"{prefix}{key}", prefix) for key, inner in part.items()}
    if isinstance(part, tuple) or (isinstance(part, list) and not _is_array(part)):
        return tuple(_named(inner, f"{name}_{number}", prefix) for number, inner in enumerate(part))
    return name


def _is_array(part: list[Any]) -> bool:
    """Returns whether a list is itself an array, such as a list of numbers, rather than a list of arrays."""
    return not part or not hasattr(part[0], "shape")


def _picked(names: Names, features: Mapping[str, Any]) -> Any:
    if names is None or isinstance(names, str):
        return None if names is None else features[names]
    if isinstance(names, Mapping):
        return {key: _picked(inner, features) for key, inner in names.items()}
    return tuple(_picked(inner, features) for inner in names)


def _pairs(names: Names, part: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(names, str):
        yield names, part
    elif names is not None:
        for key, inner in names.items() if isinstance(names, Mapping) else enumerate(names):
            yield from _pairs(inner, part[key])
