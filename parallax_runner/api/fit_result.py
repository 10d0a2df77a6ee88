"""Stores the history and variables that result from a `fit` call, for the workers of later calls in the same script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from parallax_runner.files.whole import write_whole

HISTORY = "fit_history.json"
VALUES = "fit_values.npz"


def leave(run_dir: Path, model: Any, history: Any, steps: int) -> None:
    """Writes the history, the number of steps and the values of all variables into the run's folder."""
    facts = {
        "history": history.history,
        "epoch": list(history.epoch),
        "params": dict(history.params),
        "steps": steps,
    }
    write_whole(run_dir / HISTORY, json.dumps(facts, default=float))
    with open(run_dir / VALUES, "wb") as file:
        np.savez(file, **{path: variable.numpy() for path, variable in variables_of(model).items()})


def take_over(run_dir: Path, model: Any) -> tuple[Any, int]:
    """Loads the stored values into a model. Returns the History and the number of steps."""
    import keras

    facts = json.loads((run_dir / HISTORY).read_text(encoding="utf-8"))
    history = keras.callbacks.History()
    history.set_model(model)
    history.history, history.epoch, history.params = facts["history"], facts["epoch"], facts["params"]
    if not model.optimizer.built and model.built:
        model.optimizer.build(model.trainable_variables)
    with np.load(run_dir / VALUES) as values:
        for path, variable in variables_of(model).items():
            variable.assign(values[path])
    model.history = history
    return history, int(facts["steps"])


def variables_of(model: Any) -> dict[str, Any]:
    """Returns the variables of a model and its optimizer by path."""
    return {variable.path: variable._value for variable in [*model.variables, *model.optimizer.variables]}
