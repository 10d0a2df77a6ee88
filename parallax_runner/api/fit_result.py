"""Stores the history and variables that result from a `fit` call, next to its checkpoints. The workers of later calls
in the same script read them, and so does a process that repeats the call."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parallax_runner.api.callback_state import restore, states_of
from parallax_runner.files.plain import object_in
from parallax_runner.files.whole import write_whole, writing_whole

log = logging.getLogger(__name__)

MOST_DEPTH = 20  # more than the dimensions of any array
# The entries of a result's JSON file, with their types.
FACTS = {"history": dict, "epoch": list, "params": dict, "callbacks": list, "run": dict}


def stem_of(folder: Path, call: int) -> Path:
    """Returns the common start of the file paths of a result. `call` is the number of the call, counted from 1 among
    the calls of a script that use this checkpoint folder."""
    return folder / f"fit-{call}"


def leave(stem: Path, model: Any, history: Any, callbacks: Sequence[Any], run: Mapping[str, int]) -> str | None:
    """Writes the values of all variables, the history, the state of the callbacks, and the numbers `run`, which
    describe the call and contain the number of completed `steps`.

    Never raises, because the model is trained. If the result cannot be written, prints a note and returns the reason.
    Otherwise, returns None.
    """
    try:
        _write(stem, model, history, callbacks, run)
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        log.warning("%s.npz and .json were not written: %s", stem, reason, exc_info=True)
        print(
            f"parallax_runner: the result of fit was not written to {stem}.npz and .json: {reason}. The model has its "
            "weights, but a later call of fit in this script cannot start, and the same call in another process does "
            "not find the result",
            file=sys.stderr,
        )
        _remove(stem)
        return reason
    return None


def _write(stem: Path, model: Any, history: Any, callbacks: Sequence[Any], run: Mapping[str, int]) -> None:
    facts = {
        "history": history.history,
        "epoch": list(history.epoch),
        "params": dict(history.params),
        "callbacks": states_of(callbacks),
        "run": dict(run),
    }
    text = json.dumps(as_json(facts))
    with writing_whole(_values(stem)) as file:
        np.savez(file, **{path: variable.numpy() for path, variable in variables_of(model).items()})
    write_whole(_facts(stem), text)


def take_over(stem: Path, model: Any, callbacks: Sequence[Any] = ()) -> tuple[Any, int]:
    """Loads the stored values into a model, and the stored states into the callbacks. Returns the History and the
    number of steps."""
    import keras

    facts = json.loads(_facts(stem).read_text(encoding="utf-8"))
    history = keras.callbacks.History()
    history.set_model(model)
    history.history, history.epoch, history.params = facts["history"], facts["epoch"], facts["params"]
    with np.load(_values(stem)) as values:
        for path, variable in variables_of(model).items():
            variable.assign(values[path])
    list(restore(callbacks, facts["callbacks"]))
    model.history = history
    return history, int(facts["run"]["steps"])


def run_of(stem: Path, model: Any) -> dict[str, int] | None:
    """Returns the numbers that describe the call. Returns None if there is no readable result, or if the result belongs
    to a model with other variables."""
    facts = object_in(_facts(stem))
    if not all(isinstance(facts.get(name), kind) for name, kind in FACTS.items()):
        return None
    if not all(isinstance(state, dict) and "kind" in state for state in facts["callbacks"]):
        return None
    try:
        with np.load(_values(stem)) as values:
            shapes = {path: values[path].shape for path in values.files}
    except Exception:  # a damaged file raises errors of NumPy, zipfile and zlib
        return None
    expected = {path: tuple(variable.shape) for path, variable in variables_of(model).items()}
    return dict(facts["run"]) if shapes == expected else None


def forget(folder: Path, call: int) -> None:
    """Removes the results of a call and of all later calls, because this call begins to train."""
    for path in folder.glob("fit-*.json"):
        number = path.stem.removeprefix("fit-")
        if number.isdecimal() and int(number) >= call:
            path.unlink(missing_ok=True)
            path.with_suffix(".npz").unlink(missing_ok=True)


def variables_of(model: Any) -> dict[str, Any]:
    """Returns the variables of a model and its optimizers by name. Builds the optimizer if the model is built and has
    Keras' own `train_step`."""
    from parallax_runner.graph.traced.keras_model import has_own_train_step
    from parallax_runner.graph.traced.model_variables import named_variables

    if not has_own_train_step(model) and model.built and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return named_variables(model)


def _facts(stem: Path) -> Path:
    return stem.with_name(f"{stem.name}.json")


def _values(stem: Path) -> Path:
    return stem.with_name(f"{stem.name}.npz")


def _remove(stem: Path) -> None:
    for path in (_facts(stem), _values(stem)):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def as_json(value: Any, depth: int = MOST_DEPTH) -> Any:
    """Returns a value of the logs in a form that JSON can store. Callbacks may put any object into the logs: an array
    or a tensor becomes a list or a number, and any other object becomes a string, as does a value that is nested more
    than `depth` times."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if not depth:
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): as_json(inner, depth - 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner, depth - 1) for inner in value]
    if hasattr(value, "__array__"):
        return as_json(np.asarray(value).tolist(), depth - 1)
    return str(value)
