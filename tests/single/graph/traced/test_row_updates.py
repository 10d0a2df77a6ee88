"""Which rows an update of a Keras optimizer reads and writes, and what that sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from parallax_runner.analysis.classify import classify
from parallax_runner.errors import CaptureError
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced import row_updates
from parallax_runner.graph.traced.capture_step import capture_step
from tests.single.rewrite.one_device import graph_of

optimizers = keras.optimizers
BATCH, FEW, MANY = 4, 100, 10_000
VALUES = {"ids": np.array([1, 1, 4, 5], np.int32), "y": np.array([1.0, 2.0, -1.0, 0.5])}
TABLE = "table/embeddings"


def table_model(optimizer: Callable[[], Any], *, rows: int = FEW) -> Any:
    """A table and a dense layer in float64."""
    ids = keras.Input((), dtype="int32", name="ids")
    rows_of = keras.layers.Embedding(rows, 3, name="table", dtype="float64")(ids)
    made = keras.Model(ids, keras.layers.Dense(1, name="out", dtype="float64")(rows_of))
    made.compile(optimizer=optimizer(), loss="mse")
    return made


def captured(
    optimizer: Callable[[], Any], *, rows: int = FEW, mode: str = "exact", batch: int = BATCH
) -> SingleDeviceGraph:
    """Captures a step of `table_model`."""
    features = {"ids": ((batch,), "int32"), "y": ((batch,), "float64")}

    return capture_step(
        lambda: table_model(optimizer, rows=rows), features, seed=7, options={"labels": "y", "sparse_updates": mode}
    )


def rows_written(single: SingleDeviceGraph) -> str:
    (table,) = [variable for variable in classify(single) if variable.name == TABLE]
    return table.rows_written.value


@pytest.mark.parametrize(
    ("made", "mode", "written"),
    [
        (optimizers.SGD, "exact", "touched"),
        (optimizers.Adagrad, "exact", "touched"),
        (lambda: optimizers.Adagrad(clipnorm=0.1), "exact", "touched"),
        (lambda: optimizers.Adagrad(global_clipnorm=0.1), "exact", "touched"),
        (optimizers.Adam, "exact", "all"),
        (lambda: optimizers.SGD(momentum=0.9), "exact", "all"),
        (optimizers.Adam, "lazy", "touched"),
        (lambda: optimizers.AdamW(weight_decay=0.1), "lazy", "touched"),
        (lambda: optimizers.Adam(global_clipnorm=0.1), "lazy", "touched"),
        (lambda: optimizers.SGD(weight_decay=0.1), "lazy", "touched"),
        (lambda: optimizers.Adam(use_ema=True), "lazy", "all"),
    ],
)
def test_rows_written(made: Callable[[], Any], mode: str, written: str) -> None:
    assert rows_written(captured(made, mode=mode)) == written


def table_after_a_step(single: SingleDeviceGraph) -> tuple[np.ndarray, np.ndarray]:
    device = graph_of(single, "local")
    device.initialize()
    before = device.variables()[TABLE]
    device.step([VALUES])
    return before, device.variables()[TABLE]


@pytest.mark.parametrize(
    "made",
    [
        lambda: optimizers.Adam(0.1),
        lambda: optimizers.AdamW(0.1, weight_decay=0.1),
        lambda: optimizers.AdamW(0.1, weight_decay=0.1, global_clipnorm=0.1),
        lambda: optimizers.SGD(0.1, weight_decay=0.1),
    ],
)
def test_lazy_updates_are_those_of_touched_rows_alone(made: Callable[[], Any]) -> None:
    before, exact = table_after_a_step(captured(made))
    _, lazy = table_after_a_step(captured(made, mode="lazy"))
    touched = np.unique(VALUES["ids"])
    np.testing.assert_allclose(lazy[touched], exact[touched], rtol=1e-12)
    assert (lazy[touched] != before[touched]).all()
    others = np.setdiff1d(np.arange(FEW), touched)
    np.testing.assert_array_equal(lazy[others], before[others])


def test_adagrad_by_rows_is_adagrad_of_the_dense_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    _, by_rows = table_after_a_step(captured(lambda: optimizers.Adagrad(0.1)))
    monkeypatch.setattr(row_updates, "keeps_untouched_rows", lambda *_: False)
    single = captured(lambda: optimizers.Adagrad(0.1))
    _, by_slices = table_after_a_step(single)
    np.testing.assert_allclose(by_rows, by_slices, rtol=1e-12)


def test_lazy_is_refused_where_rows_depend_on_others() -> None:
    with pytest.raises(
        CaptureError, match=r"sparse_updates=lazy: with Lamb, the update of a row of .* depends on other rows.*exact"
    ):
        captured(optimizers.Lamb, mode="lazy")


def test_lazy_is_refused_where_the_gradient_becomes_dense() -> None:
    """Also in a branch of Keras, which would write its own arguments into the message."""
    accumulating = {"weight_decay": 0.1, "gradient_accumulation_steps": 2}
    with pytest.raises(CaptureError, match=r"^model\.sparse_updates=lazy: .*«table/embeddings» is dense.*sparse$"):
        captured(lambda: optimizers.AdamW(**accumulating), mode="lazy")


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"model\.sparse_updates=some: expected one of exact, lazy"):
        captured(optimizers.SGD, mode="some")


def test_fixed_loss_scaling_works_with_a_sparse_gradient() -> None:
    """Plain Keras divides slices by a number, which fails."""
    _, plain = table_after_a_step(captured(lambda: optimizers.SGD(0.1)))
    _, scaled = table_after_a_step(captured(lambda: optimizers.SGD(0.1, loss_scale_factor=16.0)))
    np.testing.assert_allclose(scaled, plain, rtol=1e-12)
