"""`train_step` and `test_step` get the same elements from `fit` as from Keras' own fit."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.api.fit_data import dataset_of
from parallax_runner.errors import CaptureError, DataError
from parallax_runner.graph.components import type_spec
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_model
from parallax_runner.graph.traced.row_updates import SparseUpdates

X, Y, W = np.ones([16, 3], "float32"), np.ones([16, 1], "float32"), np.ones([16], "float32")
IDS = np.ones([16, 2], "int32")


class Pair(NamedTuple):
    first: Any
    second: Any


def types_in(element: Any) -> Any:
    """Replaces each tensor in an element by its dtype and the sizes of an example."""
    return tf.nest.map_structure(lambda tensor: (tensor.dtype.name, *tensor.shape[1:]), element)


class Recording(keras.Model):
    """Notes what its steps get."""

    def __init__(self) -> None:
        super().__init__()
        self.out = keras.layers.Dense(1)
        self.seen: dict[str, Any] = {}

    def train_step(self, data: Any) -> dict[str, Any]:
        self.seen["train"] = types_in(data)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.out(tf.ones([1, 2])))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}

    def test_step(self, data: Any) -> dict[str, Any]:
        self.seen["test"] = types_in(data)
        return {"loss": tf.reduce_mean(self.out(tf.ones([1, 2])))}


def model(kind: type[keras.Model] = Recording) -> Any:
    made = kind()
    made.compile("sgd")
    return made


def dataset(element: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(element).batch(8)


class Made(keras.utils.PyDataset):
    """Makes the same batch twice."""

    def __init__(self, element: Any) -> None:
        super().__init__()
        self.element = element

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.element


def captured(made: Any, x: Any, y: Any = None, **given: Any) -> SingleDeviceGraph:
    """Returns the step that `fit` captures."""
    names = ("validation_data", "validation_steps", "validation_batch_size", "class_weight", "sample_weight")
    defaults = {**dict.fromkeys(names), "batch_size": None, "steps_per_epoch": None, "validation_split": 0.0}
    data = dataset_of(x, y, **{**defaults, "shuffle": False, "is_exact": lambda: True, "pass_steps": None, **given})
    return capture_model(
        made,
        {name: type_spec(feature, 8) for name, feature in data.features.items()},
        data.structure.element_of,
        seed=1,
        sparse_updates=SparseUpdates.EXACT,
        validation=data.validation_structure.element_of if data.validation_size else None,
    )


ARRAYS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((X,), {}),
    (([X, IDS],), {}),
    ((X, Y), {}),
    ((X, Y), {"sample_weight": W}),
    ((X,), {"sample_weight": W}),
    (({"a": X, "b": [IDS, X]}, [Y, Y]), {"sample_weight": W}),
    ((X, {"a": Y, "b": Y}), {"sample_weight": {"a": W, "b": W}, "validation_data": (X, {"a": Y, "b": Y})}),
    ((X, Y), {"class_weight": {1: 2.0}, "validation_data": (X, Y)}),
    ((X, Y), {"validation_data": [X, Y]}),
    ((X, Y), {"validation_data": (X, Y, W)}),
    ((X, {"a": Y}), {"validation_data": (X, {"a": Y}, {"a": W})}),
    ((X,), {"validation_data": (X,)}),
    ((X,), {"validation_split": 0.5}),
    (({"a": X}, {"a": Y}), {"validation_split": 0.5}),
]
DATASETS: list[tuple[Any, dict[str, Any]]] = [
    (X, {}),
    ((X,), {}),
    ({"ids": IDS, "label": Y}, {"validation_data": dataset({"ids": IDS, "label": Y})}),
    ((X, Y), {"validation_data": (X, Y)}),
    ((X, Y, W), {"validation_data": dataset((X, Y))}),
    ((X, Y), {"class_weight": {1: 2.0}, "validation_data": dataset((X, Y))}),
    ((X, Y), {"validation_data": (X, Y, W)}),
    ((X, {"a": Y}), {"validation_data": dataset((X, {"a": Y}, {"a": W}))}),
    ((X, (Y, Y), (W, W)), {"validation_data": (X, [Y, Y])}),
    ((X, Y, IDS, {"a": W}), {}),
    (((X, IDS), {"a": (Y, {"b": Y})}), {}),
    (Pair(X, Pair(Y, IDS)), {}),
]


X64, Y64 = X.astype("float64"), Y.astype("float64")
# The batches of a keras.utils.PyDataset: their floats are not cast.
MADE: list[tuple[Any, dict[str, Any]]] = [
    (X, {}),
    ((X64,), {"class_weight": {1: 2.0}}),
    ({"ids": IDS, "label": Y64}, {"class_weight": {1: 2.0}}),
    ([X64, Y], {}),
    ((X, Y, W), {"validation_data": (X, Y)}),
    ((X, Y), {"class_weight": {1: 2.0}, "validation_data": (X, Y)}),
    ((X, {"a": Y, "b": Y}), {"validation_data": (X, {"a": Y, "b": Y}, W)}),
    (({"a": X}, {"a": Y}), {"validation_data": dataset(({"a": X}, {"a": Y}, {"a": W}))}),
    ((X, Y), {"validation_data": Made((X, Y, W))}),
]
CASES = {
    "arrays": ARRAYS,
    "dataset": [((dataset(element),), given) for element, given in DATASETS],
    "PyDataset": [((Made(element),), given) for element, given in MADE],
}


@pytest.mark.parametrize(
    ("positional", "given"),
    [pytest.param(*case, id=f"{kind}-{n}") for kind, cases in CASES.items() for n, case in enumerate(cases)],
)
def test_the_steps_get_what_keras_passes(positional: tuple[Any, ...], given: dict[str, Any]) -> None:
    plain, ours = model(), model()
    has_batches = isinstance(positional[0], tf.data.Dataset | keras.utils.PyDataset)
    size = {} if has_batches else {"batch_size": 8}
    plain.fit(*positional, verbose=0, shuffle=False, **size, **given)
    captured(ours, *positional, **size, **given)
    assert plain.seen.keys() == (
        {"train", "test"} if {"validation_data", "validation_split"} & set(given) else {"train"}
    )
    assert ours.seen == plain.seen
    assert type(ours.seen["train"]) is type(plain.seen["train"])


def test_validation_data_with_other_parts_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"validation_data has the features \['x'\], but the training data has \['x', 'y'\]"
    ):
        captured(model(), X, Y, batch_size=8, validation_data=X)


class Failing(Recording):
    def test_step(self, data: Any) -> dict[str, Any]:
        x, y, weight = data
        return {"loss": tf.reduce_mean(x - y * weight)}


class Silent(Recording):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)["loss"]


def test_an_error_in_test_step_counts_only_with_validation_data() -> None:
    assert captured(model(Failing), X, Y, batch_size=8).validation_loss is None
    with pytest.raises(
        CaptureError, match=r"test_step of the model «failing\w*» failed .*ValueError: not enough"
    ) as error:
        captured(model(Failing), X, Y, batch_size=8, validation_data=(X, Y))
    assert isinstance(error.value.__cause__, ValueError)


def test_a_step_that_returns_no_dict_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"train_step of the model «silent\w*» returned .* must return a dict"):
        captured(model(Silent), X, Y, batch_size=8)
