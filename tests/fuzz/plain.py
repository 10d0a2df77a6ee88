"""Trains random models with untouched TensorFlow in one process: `python -m tests.fuzz.plain FOLDER OUT ORDER SEED…`.

Nothing here imports the package, which changes some of TensorFlow's functions. `ORDER` is the seed of the order of
examples within a batch, 0 for their own order.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.fuzz import kinds
from tests.fuzz.batches import Batch, by_step, split
from tests.fuzz.merged import merged_gradients
from tests.fuzz.module import imported, read_models
from tests.fuzz.random_model import GRAPH, KERAS, RandomModel

Arrays = dict[str, np.ndarray]


def main(folder: Path, out: Path, order: int, seeds: list[int]) -> None:
    """Trains each model, and writes its variables and losses, or why it failed."""
    assert "parallax_runner" not in sys.modules
    chosen = set(seeds)
    for model in read_models(folder):
        if model.seed not in chosen:
            continue
        try:
            with merged_gradients(dense=uses_keras_optimizer(model)):
                first, final, losses = train(folder, model, order)
        except Exception:
            (out / f"{model.seed}_failed.txt").write_text(traceback.format_exc(), encoding="utf-8")
            continue
        save(out / f"{model.seed}_initial.npz", first)
        save(out / f"{model.seed}_final.npz", final)
        save(out / f"{model.seed}_losses.npz", {"losses": np.array(losses)})


def train(folder: Path, model: RandomModel, order: int) -> tuple[Arrays, Arrays, list[float]]:
    """Returns all variables by name before the first and after the last step, and the loss of each step."""
    begin_afresh()
    module = imported(folder, model.seed)
    if set(model.labels) & set(kinds.SUMS):
        # The package documents that N ranks train with 1/N of a sum.
        module.SHARE = 1.0 / model.ranks  # type: ignore[attr-defined]
    ranks = model.ranks_by_step()
    batches = by_step(module.FEATURES, model.seed, ranks, order)
    trained = {GRAPH: _train_graph, KERAS: _train_keras}.get(model.front, _train_step)
    return trained(module, batches)


def uses_keras_optimizer(model: RandomModel) -> bool:
    """Returns whether gradients reach one of Keras' optimizers, and nothing else."""
    is_of_tensorflow_1 = any(label.startswith("optimizer: v1") for label in model.labels)
    return model.front != GRAPH and not is_of_tensorflow_1 and "update: by hand" not in model.labels


def begin_afresh() -> None:
    """Makes Keras name and type objects as in a new process."""
    keras.config.set_floatx("float32")
    keras.utils.clear_session(free_memory=False)
    tf.random.set_seed(7)


def name_of(variable: Any) -> str:
    """Returns a variable's name as an op has it."""
    name = variable.path if isinstance(variable, keras.Variable) else variable.name.split(":")[0]
    return re.sub(r"[^\w./-]", "_", name)


def _values(variables: list[Any]) -> Arrays:
    # A variable that the first step creates has no value before.
    found = {}
    for variable in variables:
        with suppress(tf.errors.FailedPreconditionError):
            found[name_of(variable)] = np.array(variable.numpy())
    return found


def _train_keras(module: ModuleType, batches: list[Batch]) -> tuple[Arrays, Arrays, list[float]]:
    tf.config.run_functions_eagerly(True)
    try:
        model = module.make()
        model.optimizer.build(model.trainable_variables)
        of_metrics = {id(one) for one in model.metrics_variables}

        def variables() -> list[Any]:
            # Layers without a seed draw the state of their generator, which nothing here uses.
            kept = [one for one in model.variables if id(one) not in of_metrics and one.name != "seed_generator_state"]
            return [*kept, *model.optimizer.variables, *module.KEPT]

        def step(batch: Batch) -> float:
            model.reset_metrics()
            return float(model.train_on_batch(*split(module.OPTIONS, batch), return_dict=True)["loss"])

        return _trained(step, variables, batches)
    finally:
        tf.config.run_functions_eagerly(False)


def _train_step(module: ModuleType, batches: list[Batch]) -> tuple[Arrays, Arrays, list[float]]:
    made, variables = module.make()

    def step(batch: Batch) -> float:
        return float(made({name: tf.constant(array) for name, array in batch.items()}))

    return _trained(step, variables, batches)


def _trained(
    step: Callable[[Batch], float], variables: Callable[[], list[Any]], batches: list[Batch]
) -> tuple[Arrays, Arrays, list[float]]:
    first = _values(variables())
    losses = [step(batch) for batch in batches]
    return first, _values(variables()), losses


def _train_graph(module: ModuleType, batches: list[Batch]) -> tuple[Arrays, Arrays, list[float]]:
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        features = {
            name: v1.placeholder(dtype, (None, *shape), name=f"features/{name}")
            for name, (shape, dtype) in module.FEATURES.items()
        }
        made = module.build(features)
        variables = {variable.op.name: variable for variable in v1.global_variables()}
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            first = session.run(variables)
            losses = []
            for batch in batches:
                feed = {tensor: batch[name] for name, tensor in features.items()}
                losses.append(float(session.run([made["loss"], made["train_op"]], feed)[0]))
            return _arrays(first), _arrays(session.run(variables)), losses


def _arrays(values: Mapping[str, Any]) -> Arrays:
    return {name: np.array(value) for name, value in values.items()}


def save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes an .npz file. Names keep their slashes."""
    with open(path, "wb") as file:
        np.savez(file, **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), [int(seed) for seed in sys.argv[4:]])
