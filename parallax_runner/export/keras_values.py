"""Reads the values of a model's variables from a `.keras` or `.weights.h5` file, without changing the model.

Keras itself reads the variables of each layer and of the optimizer. The model comes from the command line, so custom
objects in the file need not be loadable.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np

from parallax_runner.errors import CheckpointError, Setting
from parallax_runner.export.keras_weights import variables_by_path

T = TypeVar("T")
# Where Keras stores the state of a model's optimizer.
OPTIMIZER = "optimizer"
_IN_ARCHIVE = "model.weights.h5"


def read_values(path: Path, model: Any, *, key: str) -> dict[str, np.ndarray]:
    """Returns the values of the variables that the file has, by their names in checkpoints. `key` is the setting that
    names the file.

    Layers with names of their own are matched by these names. Layers with automatic names, such as `dense_1`, are
    matched by their places, as `model.load_weights` does. Layers of the file that the model does not have are left out.
    The state of the optimizer is read if all layers have the same places.

    Raises CheckpointError if the file cannot be read, or if a layer has another number of variables in the file.
    """
    with _opened(path, key) as store:
        stored = _stored_layers(store.h5_file)
        layers = dict(_walk(model, "", set()))
        pairs = _pairs(stored, layers)
        found = _recorded(store, layers, pairs, path, key)
    by_path = variables_by_path(model)
    return {name: found[_id_of(variable)] for name, variable in by_path.items() if _id_of(variable) in found}


@contextmanager
def _opened(path: Path, key: str) -> Iterator[Any]:
    from keras.src.saving.saving_lib import H5IOStore

    with ExitStack() as stack:
        try:
            if path.suffix == ".keras":
                archive = stack.enter_context(zipfile.ZipFile(path))
                store = H5IOStore(_IN_ARCHIVE, archive=archive, mode="r")
            else:
                store = H5IOStore(str(path), mode="r")
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CheckpointError(f"this file of Keras cannot be read: {reason}").about(
                Setting.of(key, path)
            ) from error
        stack.callback(store.close)
        yield store


def _stored_layers(file: Any) -> dict[str, str]:
    """Returns the name of each object in the file that has variables, or contains such an object, by its place. Objects
    without a name have an empty one."""
    names: dict[str, str] = {}
    with_variables: set[str] = set()

    def note(place: str, group: Any) -> None:
        parent, _, last = place.rpartition("/")
        if last != "vars" or not hasattr(group, "keys"):
            return
        names[parent] = str(group.attrs.get("name", ""))
        if len(group):
            with_variables.add(parent)

    file.visititems(note)
    return {
        place: name
        for place, name in names.items()
        if place and any(one == place or one.startswith(f"{place}/") for one in with_variables)
    }


def _walk(saveable: Any, place: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yields each object of a model that Keras saves, with its place in a file."""
    from keras.src.saving.saving_lib import _walk_saveable

    if id(saveable) in seen:
        return
    seen.add(id(saveable))
    yield place, saveable
    for name, child in _walk_saveable(saveable):
        yield from _walk_child(child, _joined(place, name), seen)


def _walk_child(child: Any, place: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    from keras.src.saving.keras_saveable import KerasSaveable

    if isinstance(child, KerasSaveable):
        yield from _walk(child, place, seen)
    elif isinstance(child, list | dict | tuple) and id(child) not in seen:
        seen.add(id(child))
        yield from _walk_container(child, place, seen)


def _walk_container(container: Any, place: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yields what a container holds. Keras numbers its elements by their classes."""
    from keras.src.saving.keras_saveable import KerasSaveable
    from keras.src.saving.saving_lib import _get_unique_name
    from keras.src.utils import naming

    used: dict[str, int] = {}
    for child in list(container.values()) if isinstance(container, dict) else container:
        if isinstance(child, KerasSaveable):
            name = _get_unique_name(naming.to_snake_case(type(child).__name__), used)
        elif isinstance(child, list | dict | tuple):
            name = _get_unique_name("container", used)
        else:
            continue
        yield from _walk_child(child, _joined(place, name), seen)


def _joined(place: str, name: str) -> str:
    return f"{place}/{name}" if place else name


def _pairs(stored: Mapping[str, str], layers: Mapping[str, Any]) -> dict[str, str]:
    """Returns the place in the file for each place of the model that has one."""
    below = {place: one for place, one in layers.items() if not _is_of_optimizer(place)}
    of_layers = {place: name for place, name in stored.items() if not _is_of_optimizer(place)}
    found = _matched(of_layers, below, "", "")
    if found != {place: place for place in of_layers}:
        return found
    return found | {place: place for place in stored if _is_of_optimizer(place) and place in layers}


def _matched(stored: Mapping[str, str], layers: Mapping[str, Any], other: str, place: str) -> dict[str, str]:
    """Matches the objects directly below `other` in the file with those below `place` in the model, and then what is
    below each pair."""
    in_file, in_model = _directly_below(other, stored), _directly_below(place, layers)
    by_name = _unique({one: _name_of(layer) for one, layer in in_model.items()})
    found: dict[str, str] = {}
    for one, name in in_file.items():
        same = f"{place}{one.removeprefix(other)}" if place else one
        named = by_name.get(name)
        if same in in_model and _is_automatic(name, in_model[same]):
            pair = same if _is_automatic(_name_of(in_model[same]), in_model[same]) else None
        else:
            pair = named
        if pair is not None:
            found |= {pair: one, **_matched(stored, layers, one, pair)}
    return found


def _is_automatic(name: str, layer: Any) -> bool:
    """Returns whether Keras could have given this name to a layer of the same class. Such a name depends on what else
    was made in the process."""
    from keras.src.utils import naming

    kind = naming.to_snake_case(type(layer).__name__)
    return not name or re.fullmatch(rf"{re.escape(kind)}(_[0-9]+)?", name) is not None


def _directly_below(place: str, objects: Mapping[str, T]) -> dict[str, T]:
    """Returns the objects below a place that are in no other object below it. The empty place is the model itself."""
    start = f"{place}/" if place else ""
    below = {one: each for one, each in objects.items() if one and one.startswith(start)}
    return {one: each for one, each in below.items() if not any(one.startswith(f"{other}/") for other in below)}


def _unique(names: Mapping[str, str]) -> dict[str, str]:
    counts = Counter(names.values())
    return {name: place for place, name in names.items() if name and counts[name] == 1}


def _name_of(saveable: Any) -> str:
    name = getattr(saveable, "name", "")
    return name if isinstance(name, str) else ""


def _is_of_optimizer(place: str) -> bool:
    return place == OPTIMIZER or place.startswith(f"{OPTIMIZER}/")


def _recorded(
    store: Any, layers: Mapping[str, Any], pairs: Mapping[str, str], path: Path, key: str
) -> dict[int, np.ndarray]:
    """Lets each object load its variables, and returns what it assigns, by the ids of the TensorFlow variables."""
    import keras

    found: dict[int, np.ndarray] = {}

    def record(variable: Any, value: Any) -> None:
        found[_id_of(variable)] = np.asarray(value)

    with mock.patch.object(keras.Variable, "assign", record), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns about an optimizer with other variables, which is left out
        for place, other in pairs.items():
            try:
                layers[place].load_own_variables(store.get(other))
            except Exception as error:  # a custom layer can fail in any way
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise CheckpointError(f"«{_name_of(layers[place]) or place}» does not fit: {reason}").about(
                    Setting.of(key, path)
                ) from error
    return found


def _id_of(variable: Any) -> int:
    return id(getattr(variable, "_value", variable))


def missing(values: Collection[str], model: Any) -> list[str]:
    """Returns the names of the variables of the model's layers that are not among `values`. Files of Keras have no
    states of random generators."""
    own = {_id_of(one) for one in model.variables if one.name != "seed_generator_state"}
    return [name for name, one in variables_by_path(model).items() if _id_of(one) in own and name not in values]
