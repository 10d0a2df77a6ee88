"""Trains a program of this folder: `train.py PROGRAM LEFT MODE…`, where MODE is «plain» or COMM-WORKERS.

Writes the history and all variables of each mode to the file LEFT. All numbers are float64, so that only the order of
additions differs.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import keras

import parallax_runner
from parallax_runner.graph.traced.held_objects import held_variables


def trained(name: str, mode: str) -> dict[str, Any]:
    """Trains a new model of the program."""
    make = importlib.import_module(f"tests.programs.{name}").make  # an import may draw random numbers
    keras.utils.clear_session()
    keras.utils.set_random_seed(4)
    program = make()
    model, arguments = program.model, {"shuffle": False, "verbose": 0, **program.arguments}
    histories = []
    for _ in range(program.calls):
        if mode == "plain":
            histories.append(model.fit(**arguments).history)
        else:
            comm, workers = mode.split("-")
            options = {"comm": comm, "workers": int(workers), "overrides": ["tracking=off", f"run_dir={mode}"]}
            histories.append(parallax_runner.fit(model, **arguments, **options).history)
    variables = [(one.name, one.numpy().tolist()) for one in held_variables(model)]
    return {"history": histories, "variables": variables}


if __name__ == "__main__":
    keras.config.set_floatx("float64")
    found = {mode: trained(sys.argv[1], mode) for mode in sys.argv[3:]}
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")
