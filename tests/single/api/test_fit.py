"""What `fit` refuses and accepts before anything is captured or launched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import parallax_runner
from parallax_runner.api import scripts_without_driver
from parallax_runner.api.fit_data import dataset_of
from parallax_runner.api.fit_validation import epochs_between
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.batch_structure import leaves
from parallax_runner.driver import pipeline
from parallax_runner.errors import CaptureError, ConfigError, DataError, LaunchError
from parallax_runner.train.feed import Feed

X, Y = np.zeros([12, 2], np.float32), np.zeros([12, 1], np.float32)


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that was started plainly."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "train.py", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py"])


def model(*, compiled: bool = True) -> Any:
    made = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    if compiled:
        made.compile("sgd", "mse")
    return made


def dataset() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(6)


def unseeded() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(9).batch(6)


def sparse(x: Any, y: Any) -> Any:
    return tf.sparse.from_dense(x), y


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"epochs": 0}, r"epochs=0 \(fit\): expected an integer, at least 1"),
        ({"initial_epoch": 0.5}, r"initial_epoch=0.5 \(fit\): expected an integer"),
        ({"initial_epoch": 1}, r"initial_epoch=1 \(fit\): expected an integer, at least 0 and less than epochs=1"),
        ({"comm": "hybird"}, "hybrid"),
        ({"workers": 0}, r"cluster.workers=0 \(fit\)"),
        ({"overrides": ["comm.sync=false"], "comm": "ps"}, "comm.sync=false"),
        ({"overrides": ["partition=search"]}, "with fit the plan cannot change"),
        ({"overrides": ["optimizer=adagrad"]}, r"optimizer=adagrad \(fit\): .*; remove this setting, and change model"),
        (
            {"overrides": ["train.accumulate_steps=4"]},
            r"train.accumulate_steps=4 \(fit\): .*; set its argument gradient_accumulation_steps=4",
        ),
        (
            {"overrides": ["train.mixed_precision=bfloat16"]},
            r"train.mixed_precision=bfloat16 \(fit\): .*; call keras.mixed_precision.set_global_policy\(",
        ),
        *(
            ({"overrides": [line]}, rf"{line} \(fit\): .*; remove this setting, and set {word}=… of a Keras optimizer")
            for line, word in (
                ("update.clip_norm=1", "clipnorm"),
                ("update.global_clip_norm=1", "global_clipnorm"),
                ("update.clip_value=1", "clipvalue"),
                ("update.weight_decay=0.1", "weight_decay"),
            )
        ),
        (
            {"overrides": ["update.schedule.warmup_steps=3"]},
            r"update.schedule.warmup_steps=3 \(fit\): .* learning_rate=keras.optimizers.schedules",
        ),
        ({"overrides": ["model=lm"]}, r"model=lm \(fit\): fit uses the model and the data of the script; remove this"),
        (
            {"overrides": ["model.verbose=2"]},
            r"model.verbose=2 \(fit\): .* only data.cache_dir, data.resume and model.sparse_updates",
        ),
        ({"overrides": ["data.batch_size=8"]}, r"data.batch_size=8 \(fit\): fit uses the model and the data of"),
        ({"overrides": ["comm.ps.backup_workers=1"], "comm": "ps"}, "comm.ps.backup_workers=1"),
        ({"overrides": ["action=search"]}, r"action=search \(fit\): fit supports only train, plan, verify"),
        ({"overrides": ["action=simulate"]}, r"action=simulate \(fit\): fit supports only"),
        ({"overrides": ["action=sync"]}, r"action=sync \(fit\): fit supports only"),
        (
            {"overrides": ["train.patience=2", "train.validate_steps=2"]},
            "pass keras.callbacks.EarlyStopping to fit",
        ),
        (
            {"overrides": ["train.steps=7"]},
            r"train.steps=7 \(fit\): fit computes train.steps from epochs, initial_epoch and steps_per_epoch",
        ),
        ({"overrides": ["++train.validate_steps=2"]}, r"fit computes train.validate_steps from validation_freq"),
        ({"overrides": ["train.log_every=1,2"]}, r"train.log_every=1,2"),
        ({"overrides": ["ckpt=off"]}, r"ckpt=off \(fit\): fit reads the trained weights from a checkpoint"),
        ({"sample_weight": np.ones(12), "class_weight": {0: 1.0}}, "pass only one of the two"),
        ({"sample_weight": np.ones(3)}, "arrays of the same length"),
        ({"validation_data": dataset().repeat()}, "it never ends: set validation_steps"),
        (
            {"validation_data": unseeded()},
            r"validation_data \(fit\): its order cannot be repeated: a shuffle has no seed",
        ),
        ({"validation_data": dataset().map(sparse)}, "ragged or sparse features, but x is an array"),
        ({"validation_data": dataset().take(0)}, r"validation_data \(fit\): it has no batches"),
        ({"validation_data": dataset(), "validation_batch_size": 6}, r"validation_batch_size \(fit\)"),
        ({"validation_steps": 0}, r"validation_steps=0 \(fit\): expected an integer, at least 1, or None"),
        ({"validation_freq": 0}, r"validation_freq=0 \(fit\): expected an integer, at least 1, or a list of epochs"),
        ({"validation_freq": (2, 3)}, r"validation_freq=\(2, 3\) \(fit\): expected .* list of epochs, counted from 1"),
        ({"validation_freq": [2, 0]}, r"validation_freq=\[2, 0\] \(fit\)"),
        ({"verbose": 3}, r"verbose=3 \(fit\): expected 'auto', 0, 1 or 2"),
    ],
)
def test_arguments(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises((ConfigError, DataError), match=told):
        parallax_runner.fit(model(), X, Y, **{"batch_size": 4, **arguments})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"y": Y}, r"y \(fit\): a tf.data.Dataset already contains it"),
        ({"batch_size": 4}, r"batch_size \(fit\)"),
        ({"validation_split": 0.5}, r"validation_split=0.5 \(fit\): this argument needs arrays"),
        ({"x": dataset().repeat()}, "the data never ends; set the number of steps per epoch"),
        ({"x": unseeded()}, "a shuffle has no seed"),
        ({"validation_data": unseeded()}, "validation_data: its order cannot be repeated: a shuffle has no seed"),
        (
            {"x": unseeded(), "validation_data": unseeded(), "overrides": ["data.resume=approximate"]},
            "validation_data: its order cannot be repeated: a shuffle has no seed",
        ),
        ({"class_weight": {1: 2.0}, "x": tf.data.Dataset.from_tensor_slices(X).batch(6)}, r"the data must be \(x, y\)"),
    ],
)
def test_arguments_beside_a_dataset(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises((ConfigError, DataError), match=told):
        parallax_runner.fit(model(), **{"x": dataset(), **arguments})


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """The configurations that `fit` passes to the driver, which starts nothing here."""
    configs: list[RunConfig] = []
    monkeypatch.setattr(pipeline, "drive", lambda config, *_: configs.append(config))
    return configs


@pytest.mark.parametrize(
    ("data", "workers", "sizes"),
    [
        ({"x": X, "y": Y, "batch_size": 3}, 2, {"batch_size": 2, "global_batch": 3}),
        ({"x": X, "y": Y, "batch_size": 5}, 1, {"batch_size": 5, "global_batch": 5}),  # the last batch has 2
        ({"x": X, "y": Y, "batch_size": 4}, 2, {"batch_size": 2}),
        ({"x": dataset()}, 4, {"batch_size": 2, "global_batch": 6}),
        ({"x": dataset().unbatch().batch(6, drop_remainder=True)}, 4, {"batch_size": 2, "global_batch": 6}),
        ({"x": dataset().unbatch().batch(6, drop_remainder=True)}, 3, {"batch_size": 2}),
    ],
)
def test_batches_that_cannot_be_divided_equally_are_accepted(
    data: dict[str, Any], workers: int, sizes: dict[str, int], driven: list[RunConfig]
) -> None:
    """Replicas then get up to data.batch_size of the data.global_batch examples."""
    parallax_runner.fit(model(), **data, workers=workers)
    (config,) = driven
    assert {key: config.data[key] for key in ("batch_size", "global_batch") if key in config.data} == sizes


@pytest.mark.parametrize(
    "line", ["data.resume=approximate", "++data.resume='approximate'", 'data.resume="approximate"']
)
def test_an_order_that_cannot_be_repeated_is_accepted_however_that_is_written(
    line: str, driven: list[RunConfig]
) -> None:
    parallax_runner.fit(model(), unseeded(), overrides=[line])
    assert [config.data["resume"] for config in driven] == ["approximate"]


def test_another_word_for_the_order_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.resume=aproximate \(fit\): expected exact or approximate"):
        parallax_runner.fit(model(), dataset(), overrides=["data.resume=aproximate"])


GIVEN: dict[str, Any] = {
    **dict.fromkeys(("batch_size", "steps_per_epoch", "class_weight", "sample_weight")),
    **dict.fromkeys(("validation_data", "validation_steps", "validation_batch_size")),
    **{"validation_split": 0.0, "shuffle": True, "is_exact": lambda: True, "pass_steps": None},
}


def test_the_last_rows_are_held_back_as_keras_does_it() -> None:
    weights = np.arange(12.0)
    found = dataset_of(X, Y, **{**GIVEN, "validation_split": 0.3, "sample_weight": weights, "batch_size": 2})
    assert (found.train_size, found.validation_size) == (8, 4)
    held_back = found.validation_batch(0, 4)
    np.testing.assert_array_equal(held_back["sample_weight"], weights[8:])
    assert any(np.array_equal(array, np.asarray(X)[8:]) for array in held_back.values())
    with pytest.raises(ConfigError, match=r"validation_split=1\.0 \(fit\)"):
        dataset_of(X, Y, **{**GIVEN, "validation_split": 1.0})


@pytest.mark.parametrize("train", [(X, Y), (dataset(), None)], ids=["arrays", "a dataset"])
@pytest.mark.parametrize(
    ("validation", "steps", "batch_size", "expected"),
    [
        ("arrays", None, None, 10),
        ("arrays", 2, 3, 6),
        ("a dataset", None, None, 10),
        ("a dataset", 2, None, 8),
        ("an endless dataset", 4, None, 14),  # a pass of 4, 4 and 2 examples, and the first 4 once more
    ],
)
def test_the_first_batches_of_the_validation_data(
    train: Any, validation: str, steps: int | None, batch_size: int | None, expected: int
) -> None:
    rows = np.arange(20.0).reshape(10, 2)
    given: Any = (rows, rows[:, :1])
    if validation != "arrays":
        given = tf.data.Dataset.from_tensor_slices(given).batch(4)
    if validation == "an endless dataset":
        given = given.repeat()
    held_back = {"validation_data": given, "validation_steps": steps, "validation_batch_size": batch_size}
    found = dataset_of(*train, **{**GIVEN, **held_back, "batch_size": None if train[1] is None else 4})
    assert found.validation_size == expected
    if train[1] is not None:
        rows_of = found.validation_batch(0, expected)["x"]
        np.testing.assert_array_equal(rows_of, np.concatenate([rows, rows])[:expected])
        assert rows_of.dtype == np.float32


@pytest.mark.parametrize(
    ("frequency", "initial_epoch", "epochs", "expected"),
    [
        (1, 0, 5, 1),
        (2, 0, 5, 2),
        (2, 1, 5, 1),  # after epochs 2 and 4, which are the first and third here
        (4, 1, 5, 3),
        (9, 0, 5, 0),
        ([2, 4, 5], 1, 5, 1),
        ([3, 5, 99], 1, 5, 2),
        ([1, 2], 3, 5, 0),
        ([], 0, 5, 0),
    ],
)
def test_each_wanted_validation_has_its_step(
    frequency: int | list[int], initial_epoch: int, epochs: int, expected: int
) -> None:
    assert epochs_between(frequency, initial_epoch, epochs) == expected


def test_what_nobody_can_count_is_not_counted_where_steps_are_given() -> None:
    def numbers() -> Any:
        number = 0
        while True:
            yield [float(number)], [0.0]
            number += 1

    specs = (tf.TensorSpec([1]), tf.TensorSpec([1]))
    endless = tf.data.Dataset.from_generator(numbers, output_signature=specs).batch(6)
    found = dataset_of(endless, None, **{**GIVEN, "steps_per_epoch": 3, "is_exact": lambda: False})
    share = found.share(rank=1, ranks=2, replicas=1)
    (batch,) = (one for position in (0, 6, 12, 18) for one in share.train_batches(position) if position == 18)
    assert [19.0, 21.0, 23.0] in [array.ravel().tolist() for array in batch.values()]

    few = dataset().unbatch().filter(lambda x, y: True).batch(6)
    share = dataset_of(few, None, **{**GIVEN, "steps_per_epoch": 3}).share(rank=0, ranks=1, replicas=1)
    share.train_batches(6)
    with pytest.raises(DataError, match=r"ended before batch 3: .*Add \.repeat\(\)"):
        share.train_batches(12)


@pytest.mark.parametrize("validation", [dataset(), (X[:6], Y[:6])], ids=["a dataset", "arrays"])
def test_weights_of_classes_weigh_no_validation_example(validation: Any) -> None:
    found = dataset_of(dataset(), None, **{**GIVEN, "validation_data": validation, "class_weight": {0: 3.0}})
    share = found.share(rank=0, ranks=2, replicas=1)
    assert [batch["sample_weight"].tolist() for batch in share.train_batches(0)] == [[3, 3, 3]]
    assert {tuple(batch["sample_weight"].tolist()) for batch in share.validation_batches(in_parts=True)} == {(1, 1, 1)}


@pytest.mark.parametrize("validation", ["a dataset", "a tuple", "a list"])
@pytest.mark.parametrize("train", ["a dataset", "arrays"])
@pytest.mark.parametrize("kind", ["one", "temporal", "named"])
def test_weights_of_validation_examples_only(train: str, validation: str, kind: str) -> None:
    rows = np.arange(12.0).reshape(6, 2)
    weights: Any = {"one": rows[:, 0], "temporal": rows, "named": {"a": rows[:, 0], "b": rows[:, 1]}}[kind]
    labels: Any = {"a": rows, "b": rows} if kind == "named" else rows
    held_back: Any = (rows, labels, weights)
    if validation == "a dataset":
        held_back = tf.data.Dataset.from_tensor_slices(held_back).batch(3)
    if validation == "a list":
        held_back = list(held_back)
    given: Any = (rows, labels)
    if train == "a dataset":
        given = (tf.data.Dataset.from_tensor_slices(given).batch(3), None)
    batch_size = 3 if train == "arrays" else None
    found = dataset_of(*given, **{**GIVEN, "validation_data": held_back, "batch_size": batch_size, "shuffle": False})
    feed = Feed(found, 3, 0, 1)
    batches = {"train": feed.train_batches(0), "validation": list(feed.validation_batches(in_parts=True))}
    assert found.structure == found.validation_structure.without_weights()
    names = list(leaves(found.validation_structure.element[2]))
    for name, expected in zip(names, tf.nest.flatten(weights), strict=True):
        assert (batches["train"][0][name] == 1).all() and batches["train"][0][name].shape == expected[:3].shape
        np.testing.assert_array_equal(np.concatenate([one[name] for one in batches["validation"]]), expected)


def test_weights_of_validation_words_only() -> None:
    """The sentences of each batch are padded to another length."""
    sentences = tf.data.Dataset.range(1, 7).map(lambda number: (tf.fill([number], 1.0), tf.fill([number], 2.0)))
    train = sentences.padded_batch(2)
    validation = sentences.padded_batch(2).map(lambda x, y: (x, y, y))
    found = dataset_of(train, None, **{**GIVEN, "validation_data": validation})
    assert {name: feature.shape for name, feature in found.features.items()} == dict.fromkeys(found.features, (None,))
    feed = Feed(found, 2, 0, 1)
    assert [feed.train_batches(start)[0]["x"].shape for start in (0, 2, 4)] == [(2, 2), (2, 4), (2, 6)]
    read = [batch["sample_weight"].shape for batch in feed.validation_batches(in_parts=True)]
    assert read == [(2, 2), (2, 4), (2, 6)]
    assert (found.structure.names, found.validation_structure.names) == (["x", "y"], ["x", "y", "sample_weight"])


def test_lists_of_arrays_beside_a_dataset() -> None:
    one, other = np.arange(6.0), np.arange(18.0).reshape(6, 3)
    train = tf.data.Dataset.from_tensor_slices(((one, other), one)).batch(3)
    found = dataset_of(train, None, **{**GIVEN, "validation_data": ([one, other], one)})
    (batch, _) = Feed(found, 3, 0, 1).validation_batches(in_parts=True)
    np.testing.assert_array_equal(batch["x_1"], other[:3])


def test_a_model_that_is_not_compiled() -> None:
    with pytest.raises(ConfigError, match=r"call model\.compile"):
        parallax_runner.fit(model(compiled=False), X, Y)


def test_a_model_of_keras_2() -> None:
    keras_2 = type("Model", (), {"__module__": "tf_keras.src.engine.training", "optimizer": "sgd"})
    with pytest.raises(CaptureError, match=r"fit got a Model from tf_keras.* only Keras 3 models can be distributed"):
        parallax_runner.fit(keras_2(), X, Y)


def test_what_is_no_model() -> None:
    with pytest.raises(ConfigError, match=r"fit trains a compiled keras\.Model, not 'model'"):
        parallax_runner.fit("model", X, Y)


def test_a_callback_of_batches() -> None:
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=print)
    with pytest.raises(ConfigError, match="overrides on_train_batch_end"):
        parallax_runner.fit(model(), X, Y, batch_size=4, callbacks=[callback])


@pytest.mark.parametrize(("task", "end", "told"), [("0", LaunchError, "is not submitted"), ("1", SystemExit, "^0$")])
def test_of_several_tasks_of_srun_the_first_one_drives(
    task: str, end: Any, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first task says that there is no allocation, and another one says nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("SLURM_PROCID", task)
    monkeypatch.setattr(scripts_without_driver, "leave", sys.exit)  # pytest goes on
    given = model()
    capfd.readouterr()
    # A note says that this callback is not called.
    callbacks = [keras.callbacks.ModelCheckpoint("best.keras")]
    overrides = ["cluster=slurm", "cluster.tasks_per_node=2", "tracking=off"]
    with pytest.raises(end, match=told):
        parallax_runner.fit(given, X, Y, workers=None, batch_size=4, callbacks=callbacks, overrides=overrides)
    said = "".join(capfd.readouterr())
    assert "ModelCheckpoint is not called" in said if task == "0" else said == "" and list(tmp_path.iterdir()) == []
