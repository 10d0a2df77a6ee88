"""A served model takes the raw values of a table's columns, wherever its folder is."""

import shutil

import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from parallax_runner.data.table.columns.kinds import columns_of
from parallax_runner.data.table.fitted import fitted
from parallax_runner.data.table.stacks import stacks_of
from parallax_runner.data.table.table_dataset import TableDataset
from parallax_runner.errors import DataError
from parallax_runner.export import raw_inputs
from parallax_runner.export.saved_model import export_saved_model
from parallax_runner.graph.capture import capture
from tests.single.data.table.in_memory import stored

COLUMNS = {
    "user name": {"category": {"oov": 2}},
    "x": {"number": {"fill": 0}},
    "z": "number",
    "tags": {"categories": {"separator": "|", "padded_to": 2}},
    "y": "label",
    "others": {"sampled": {"from": "user name", "count": 2}},
}
ROWS = {
    "user name": ["ü", "b", "b"],
    "x": [1, None, 3],
    "z": [1, 2, 3],
    "tags": [["t"], [], ["u", "t"]],
    "y": [0, 1, 0],
}


@pytest.fixture
def dataset(tmp_path):
    columns = columns_of(COLUMNS)
    table = stored([one.raw for one in columns if one.raw is not None], {"train": ROWS})
    stacks = stacks_of({"dense": ["x", "z"]}, columns)
    found = fitted(table, columns, cache_dir=str(tmp_path))
    return TableDataset(table, columns, stacks, found, shuffle="off", seed=1)


def graph_of(dataset, batch_size, *, served):
    def build(features):
        weights = tf.get_variable("weights", [8], initializer=tf.constant_initializer([1, 2, 3, 4, 5, 6, 7, 8]))
        values = {
            "user": tf.gather(weights, features["user name"]),
            "dense": tf.reduce_sum(features["dense"], axis=1),
            "tags": tf.reduce_sum(features["tags"], axis=1),
            "others": tf.reduce_sum(tf.gather(weights, features["others"]), axis=1),
        }
        loss = tf.reduce_mean(tf.square(values["user"] + values["others"] - features["y"]))
        train_op = tf.train.GradientDescentOptimizer(0.0).minimize(loss, tf.train.get_or_create_global_step())
        return {"loss": loss, "train_op": train_op, "outputs": {name: values[name] for name in served}}

    shapes = {name: ((batch_size, *one.shape), one.dtype) for name, one in dataset.features.items()}
    return capture(build, shapes, seed=1)


def exported(dataset, tmp_path, *, served):
    single = graph_of(dataset, 2, served=served)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.import_meta_graph(single.meta_graph)
        session.run(tf.global_variables_initializer())
        prefix = tf.train.Saver().save(session, str(tmp_path / "model.ckpt-1"))
    rebuild = lambda: graph_of(dataset, None, served=served)  # noqa: E731
    return export_saved_model(single, rebuild, dataset, prefix=tmp_path / prefix, folder=tmp_path / "saved_model")


def test_it_answers_from_raw_values_after_it_was_moved(dataset, tmp_path):
    folder = exported(dataset, tmp_path, served=("user", "dense", "tags"))
    shutil.move(folder, tmp_path / "moved")
    signature = tf2.saved_model.load(str(tmp_path / "moved")).signatures["serving_default"]
    names = {spec.name: spec.dtype for spec in signature.structured_input_signature[1].values()}
    assert set(signature.structured_input_signature[1]) == {"user name", "x", "z", "tags"}, names
    given = {
        "user name": tf2.constant(["b", "ü", "new", ""]),
        "x": tf2.constant([1, np.nan, 3, 4], tf2.float32),
        "z": tf2.constant([10, 20, 30, 40], tf2.float32),
        "tags": tf2.constant(["", "u|t|new", "t", "|u|"]),
    }
    answer = {name: tensor.numpy().tolist() for name, tensor in signature(**given).items()}
    assert answer["dense"] == [11, 20, 33, 44]
    assert answer["user"][:2] == [3, 4] and set(answer["user"][2:]) <= {1, 2}
    assert answer["tags"] == [0, 2 + 3, 2, 3]  # t is more frequent than u; id 0 is padding, and id 1 an unknown tag


def test_only_the_columns_that_an_output_needs_are_inputs(dataset, tmp_path):
    folder = exported(dataset, tmp_path, served=("dense",))
    signature = tf2.saved_model.load(str(folder)).signatures["serving_default"]
    assert set(signature.structured_input_signature[1]) == {"x", "z"}
    assert raw_inputs.RAW in " ".join(node.name for node in signature.graph.as_graph_def().node)


def test_an_output_that_depends_on_drawn_ids_is_not_served(dataset, tmp_path):
    with pytest.raises(DataError, match="«others», a sampled column, which a served model does not get"):
        exported(dataset, tmp_path, served=("others",))
