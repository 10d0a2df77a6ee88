"""Converts between the elements of a dataset, as Keras passes them to `train_step`, and named features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from parallax_runner.errors import DataError

# The name of a feature, a tuple of names, a mapping from keys to names, or None if the part is missing.
Names = str | tuple["Names", ...] | Mapping[str, "Names"] | None
PARTS = ("x", "y", "sample_weight")


class Prefix(Enum):
    """What precedes the key of a leaf in a dict in the leaf's name."""

    NONE = 1
    PART = 2
    PATH = 3


@dataclass(frozen=True)
class BatchStructure:
    """The names of the features in the shape of an element: the same nest of tuples, named tuples and dicts, with a
    name in place of each leaf."""

    element: Names

    @classmethod
    def of(cls, element: Any) -> BatchStructure:
        """Returns the structure of one element of a dataset: a leaf, or a nested structure of tuples, lists and dicts.
        A list of arrays becomes a tuple, as in Keras.

        A leaf in a dict is named after its key. Other leaves are named after their position: `x`, `y` and
        `sample_weight` for the parts of a tuple of at most three parts, `part_0` and so on for the parts of a longer
        one, and `y_0` and so on within a part. If two leaves would have the same name, the names of all leaves in dicts
        are prefixed with the name of the part, as in `x_id` and `y_id`. If that is not enough, they are prefixed with
        all keys and numbers on the way to the leaf, as in `x_user_id` and `x_item_id`.
        """
        structures = [cls(_named_parts(element, prefix)) for prefix in Prefix]
        for structure in structures:
            if len(set(structure.names)) == len(structure.names):
                return structure
        return cls(_numbered(structures[-1].element, set()))

    @property
    def names(self) -> list[str]:
        """The names of all features."""
        return list(leaves(self.element))

    @property
    def has_weights(self) -> bool:
        """Whether the element is (x, y, sample_weight)."""
        return isinstance(self.element, tuple) and len(self.element) == len(PARTS)

    def has_form_of(self, other: BatchStructure) -> bool:
        """Returns whether both structures are the same nest, with any names."""
        return bool(_form(self.element) == _form(other.element))

    def without_weights(self) -> BatchStructure:
        """Returns the structure of (x, y) for the structure of (x, y, sample_weight)."""
        assert isinstance(self.element, tuple)
        return BatchStructure(self.element[:-1])

    def element_of(self, features: Mapping[str, Any]) -> Any:
        """Builds an element from named features."""
        return _picked(self.element, features)

    def flatten(self, element: Any) -> dict[str, Any]:
        """Returns the features of an element that has this structure, keyed by name."""
        return dict(_pairs(self.element, element))


def structures_with_same_names(
    train: BatchStructure, validation: BatchStructure
) -> tuple[BatchStructure, BatchStructure]:
    """Returns the structures of training and validation elements, with the same names. One of them alone can have
    weights. Raises DataError if they differ otherwise."""
    if validation.has_form_of(train):
        return train, train
    if train.has_weights and train.without_weights().has_form_of(validation):
        return train, train.without_weights()
    if validation.has_weights and validation.without_weights().has_form_of(train):
        return validation.without_weights(), validation
    raise DataError(f"validation_data has the features {validation.names}, but the training data has {train.names}")


def packed(x: Any, y: Any = None, sample_weight: Any = None) -> Any:
    """Returns the element that Keras makes of arrays: x alone if there is no y, unless x is a tuple or a list. Weights
    without y are ignored. A single array of weights for several outputs is repeated for each output."""
    if y is None:
        return (x,) if isinstance(x, tuple | list) else x
    if sample_weight is None:
        return x, y
    if _is_nest(y) and not _is_nest(sample_weight):
        sample_weight = _repeated(y, sample_weight)
    return x, y, sample_weight


def unpacked(given: Any) -> tuple[Any, Any, Any]:
    """Returns (x, y, sample_weight) of validation data, as Keras does. A missing part is None. Raises DataError for a
    tuple of another length."""
    parts = tuple(given) if isinstance(given, tuple | list) else (given,)
    if not 1 <= len(parts) <= len(PARTS):
        raise DataError(
            f"validation_data is a tuple of length {len(parts)}; expected x, (x, y) or (x, y, sample_weight)"
        )
    x, y, sample_weight = (*parts, None, None)[: len(PARTS)]
    return x, y, sample_weight


def leaves(names: Names) -> Iterator[str]:
    """Yields the names of all leaves in order."""
    if isinstance(names, str):
        yield names
    elif names is not None:
        for inner in names.values() if isinstance(names, Mapping) else names:
            yield from leaves(inner)


def _named_parts(element: Any, kind: Prefix) -> Names:
    def named(part: Any, name: str) -> Names:
        return _named(part, name, "" if kind is Prefix.NONE else f"{name}_", has_path=kind is Prefix.PATH)

    if not isinstance(element, tuple):
        return named(element, PARTS[0])
    names = PARTS if len(element) <= len(PARTS) else [f"part_{number}" for number in range(len(element))]
    return _like(element, [named(part, name) for part, name in zip(element, names, strict=False)])


def _named(part: Any, name: str, prefix: str, *, has_path: bool) -> Names:
    def named(inner: Any, inner_name: str) -> Names:
        return _named(inner, inner_name, f"{inner_name}_" if has_path else prefix, has_path=has_path)

    if part is None:
        return None
    if isinstance(part, Mapping):
        return {key: named(inner, f"{prefix}{key}") for key, inner in part.items()}
    if _is_nest(part):
        return _like(part, [named(inner, f"{name}_{number}") for number, inner in enumerate(part)])
    return name


def _numbered(names: Names, taken: set[str]) -> Names:
    """Adds numbers to names that occur again. A key can look like the way to another leaf."""
    if names is None:
        return None
    if isinstance(names, Mapping):
        return {key: _numbered(inner, taken) for key, inner in names.items()}
    if not isinstance(names, str):
        return _like(names, [_numbered(inner, taken) for inner in names])
    name, number = names, 1
    while name in taken:
        number += 1
        name = f"{names}_{number}"
    taken.add(name)
    return name


def _form(names: Names) -> Any:
    if names is None or isinstance(names, str):
        return names is None
    if isinstance(names, Mapping):
        return {key: _form(inner) for key, inner in names.items()}
    return tuple(_form(inner) for inner in names)


def _is_nest(part: Any) -> bool:
    return isinstance(part, Mapping | tuple) or (isinstance(part, list) and not _is_array(part))


def _is_array(part: list[Any]) -> bool:
    """Returns whether a list is itself an array, such as a list of numbers, rather than a list of arrays."""
    return not part or not hasattr(part[0], "shape")


def _repeated(nest: Any, leaf: Any) -> Any:
    if isinstance(nest, Mapping):
        return {key: _repeated(inner, leaf) for key, inner in nest.items()}
    return _like(nest, [_repeated(inner, leaf) for inner in nest]) if _is_nest(nest) else leaf


def _like(nest: Any, parts: list[Any]) -> tuple[Any, ...]:
    """Returns the parts as a tuple, or as a named tuple if `nest` is one."""
    return type(nest)(*parts) if hasattr(nest, "_fields") else tuple(parts)


def _picked(names: Names, features: Mapping[str, Any]) -> Any:
    if names is None or isinstance(names, str):
        return None if names is None else features[names]
    if isinstance(names, Mapping):
        return {key: _picked(inner, features) for key, inner in names.items()}
    return _like(names, [_picked(inner, features) for inner in names])


def _pairs(names: Names, part: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(names, str):
        yield names, part
    elif names is not None:
        for key, inner in names.items() if isinstance(names, Mapping) else enumerate(names):
            yield from _pairs(inner, part[key])
