"""`load_into_keras`: plain Keras goes on where a checkpoint was written, to the bit; what does not fit is refused."""

import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import parallax_runner
from parallax_runner import load_into_keras
from parallax_runner.checkpoints.checkpoint_files import Sidecar
from parallax_runner.checkpoints.publish import begin, publish
from parallax_runner.errors import CheckpointError

BATCH = 8
OPTIMIZERS = {
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam with averages": lambda: keras.optimizers.Adam(0.01, use_ema=True),
    "momentum, accumulated": lambda: keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
    "dynamic loss scaling": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
}


def make_model(optimizer="adagrad", *, rows=20):
    """A model with a table, moving statistics and dropout, with names as in a process of its own."""
    keras.utils.clear_session()
    model = keras.Sequential(
        [
            keras.Input([3], dtype="int64"),
            keras.layers.Embedding(rows, 4),
            keras.layers.Flatten(),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ],
        name="small",
    )
    if optimizer is not None:
        model.compile(OPTIMIZERS[optimizer](), loss="mse")
    return model


def train(model, first, count):
    for step in range(first, first + count):
        generator = np.random.default_rng(step)
        model.train_on_batch(generator.integers(0, 20, [BATCH, 3]), generator.standard_normal([BATCH, 1]))


def state(model):
    return {variable.path: variable.numpy() for variable in [*model.variables, *model.optimizer.variables]}


def save(prefix, model, *, without=()):
    """Writes the variables under Keras' paths, as a run does; and one that the model does not have."""
    values = {path: value for path, value in state(model).items() if path not in without} | {"loss/total": np.zeros(1)}
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=[tf.constant(value) for value in values.values()],
    )
    return prefix


def publish_steps(folder, *steps):
    """Publishes a checkpoint for each number of steps, as runs do; returns the last model."""
    for step in steps:
        model = make_model()
        train(model, 0, step)
        written = save(begin(folder, step), model)
        publish(written, folder, Sidecar(step=step, examples=step * BATCH, seed=1, fingerprint="", tracker_run_id=None))
    return model


def assert_equal(model, other):
    pairs = list(zip(state(model).items(), state(other).items(), strict=True))
    assert len(pairs) > 10
    for (path, value), (_, expected) in pairs:
        np.testing.assert_array_equal(value, expected, err_msg=path)


@pytest.mark.parametrize(
    ("optimizer", "is_built_first"), [*((name, False) for name in OPTIMIZERS), ("dynamic loss scaling", True)]
)
def test_training_goes_on_to_the_bit(optimizer, is_built_first, tmp_path):
    keras.utils.set_random_seed(1)
    model = make_model(optimizer)
    if is_built_first:  # which gives slots of a LossScaleOptimizer other names
        model.optimizer.build(model.trainable_variables)
    train(model, 0, 3)
    prefix = save(tmp_path / "weights", model)
    keras.utils.set_random_seed(2)  # other initial weights and dropout
    loaded = make_model(optimizer)
    assert load_into_keras(loaded, prefix) == prefix
    for step in (3, 4):
        assert_equal(loaded, model)
        train(model, step, 1)
        train(loaded, step, 1)
    assert_equal(loaded, model)


def test_a_model_in_training_is_overwritten(tmp_path):
    model = make_model()
    train(model, 0, 2)
    prefix = save(tmp_path / "weights", model)
    loaded = make_model()
    train(loaded, 7, 3)
    load_into_keras(loaded, str(prefix))
    assert_equal(loaded, model)


def test_a_model_that_is_not_compiled_gets_its_weights(tmp_path):
    model = make_model()
    train(model, 0, 2)
    prefix = save(tmp_path / "weights", model)
    plain = make_model(optimizer=None)
    load_into_keras(plain, prefix)
    ids = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(plain.predict_on_batch(ids), model.predict_on_batch(ids))


def test_the_newest_whole_checkpoint_of_a_run_is_loaded(tmp_path):
    """Whether the folder, the run directory or the prefix is given."""
    folder = tmp_path / "ckpt"
    model = publish_steps(folder, 1, 3, 2)  # in this order: the one of step 2 is the newest
    for place in (folder, tmp_path, folder / "model.ckpt-2"):
        loaded = make_model()
        assert load_into_keras(loaded, place) == folder / "model.ckpt-2"
        assert_equal(loaded, model)


def test_a_folder_with_brackets(tmp_path):
    folder = tmp_path / "lr[1]*"
    model = publish_steps(folder, 1)
    loaded = make_model()
    load_into_keras(loaded, folder)
    assert_equal(loaded, model)


def test_a_missing_variable_is_named_and_nothing_is_changed(tmp_path):
    model = make_model()
    train(model, 0, 1)
    (slot,) = [path for path in state(model) if path.startswith("adagrad/") and path.endswith("dense_bias_accumulator")]
    prefix = save(tmp_path / "weights", model, without=[slot])
    loaded = make_model()
    train(loaded, 5, 1)
    before = {path: value.copy() for path, value in state(loaded).items()}
    with pytest.raises(
        CheckpointError, match=f"weights has no variable «{slot}»; the closest name is «adagrad/.*accumulator»"
    ):
        load_into_keras(loaded, prefix)
    assert all((before[path] == value).all() for path, value in state(loaded).items())


def test_a_second_model_of_a_process_is_told_why_its_names_differ(tmp_path):
    model = make_model()
    train(model, 0, 1)
    prefix = save(tmp_path / "weights", model)
    second = keras.Sequential([keras.Input([3], dtype="int64"), keras.layers.Embedding(20, 4)], name="small")
    message = r"«small/embedding_1/embeddings»; the closest name is «small/embedding/.*keras\.utils\.clear_session\(\)"
    with pytest.raises(CheckpointError, match=message):
        load_into_keras(second, prefix)


def test_another_shape_is_named(tmp_path):
    prefix = save(tmp_path / "weights", built(make_model()))
    with pytest.raises(
        CheckpointError, match=r"variable «small/embedding/embeddings» has shape \[20, 4\], but shape \[30, 4\] in"
    ):
        load_into_keras(make_model(rows=30), prefix)


def built(model):
    model.optimizer.build(model.trainable_variables)
    return model


def test_a_model_without_variables_yet_is_refused(tmp_path):
    prefix = save(tmp_path / "weights", built(make_model()))
    unbuilt = keras.Sequential([keras.layers.Dense(1)], name="late")
    with pytest.raises(CheckpointError, match="model «late» is not built"):
        load_into_keras(unbuilt, prefix)


def test_two_variables_of_one_name_are_refused(tmp_path):
    prefix = save(tmp_path / "weights", built(make_model()))

    class Two(keras.Model):
        def __init__(self):
            super().__init__(name="two")
            self.first, self.second = keras.layers.Dense(1, name="same"), keras.layers.Dense(1, name="same")

        def call(self, inputs):
            return self.second(self.first(inputs))

    model = Two()
    model(np.ones([1, 1]))
    with pytest.raises(CheckpointError, match="two variables of model «two» are called «two/same/kernel»"):
        load_into_keras(model, prefix)


def damaged(folder):
    publish_steps(folder, 1)
    (data,) = folder.glob("*.data-*")
    data.write_bytes(data.read_bytes()[:-1])
    return folder


@pytest.mark.parametrize("place", ["", "model.ckpt-1"])
def test_a_damaged_checkpoint_is_refused(place, tmp_path):
    folder = damaged(tmp_path / "ckpt")
    with pytest.raises(CheckpointError, match="bytes instead of"):
        load_into_keras(make_model(), folder / place)


def test_a_damaged_checkpoint_of_plain_tensorflow_is_refused(tmp_path):
    prefix = save(tmp_path / "weights", built(make_model()))
    Path(f"{prefix}.data-00000-of-00001").unlink()
    with pytest.raises(CheckpointError, match="weights cannot be read"):
        load_into_keras(make_model(), prefix)


def test_no_checkpoint(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"there is no checkpoint at this path\. Expected the prefix of a checkpoint"
    ):
        load_into_keras(make_model(), tmp_path)
    shutil.rmtree(tmp_path)
    with pytest.raises(CheckpointError, match=r"there is no checkpoint"):
        load_into_keras(make_model(), tmp_path)


def test_it_is_a_public_name():
    assert "load_into_keras" in parallax_runner.__all__
