"""Writes a checkpoint and a model's outputs as a SavedModel that plain TensorFlow can serve."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.framework import variable_pb2
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from parallax_runner.data.dataset import Dataset, Feature
from parallax_runner.errors import ExportError, ParallaxError, reason_in
from parallax_runner.export import raw_inputs
from parallax_runner.export.inference import InferenceGraph, inference_graph
from parallax_runner.export.large_models import is_linked
from parallax_runner.export.linked_checkpoint import LinkedCheckpoint, is_large, size_bytes_of, untouched_zeros
from parallax_runner.files.literal_path import literal
from parallax_runner.files.plain import remove
from parallax_runner.files.whole import write_whole
from parallax_runner.graph.single_device_graph import SingleDeviceGraph, Variable

log = logging.getLogger(__name__)

SIGNATURE = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
EXAMPLES = 2  # the number of examples in the input example, if the model accepts batches of any size
# TensorFlow ignores unknown files in this folder of a SavedModel.
DESCRIPTION = Path("assets.extra") / "serving.json"


def export_saved_model(
    single: SingleDeviceGraph,
    rebuild: Callable[[], SingleDeviceGraph],
    dataset: Dataset,
    *,
    prefix: Path,
    folder: Path,
) -> Path:
    """Writes a SavedModel from the checkpoint `prefix` to `folder`, which is replaced, and returns `folder`.

    The values of a large model are links to the files of the checkpoint, or copies of them, which also contain the
    optimizer's slots (large_models.py).

    `rebuild` builds the graph `single` again for batches of any size. If the model cannot be built for any size, or
    would then have different variables, the SavedModel accepts only batches of the training size, and its description
    states this. Opens a separate session on the CPU. Raises ExportError if the model cannot be served.
    """
    written = None
    trained = inference_graph(single)
    try:
        served = inference_graph(rebuild())
        unlike = set(served.variables) ^ set(trained.variables)
        if unlike:
            raise ExportError(f"a rebuilt model has different variables: {sorted(one.name for one in unlike)}")
        written = _write(served, dataset, EXAMPLES, prefix, folder, note=None)
    except (ParallaxError, tf.errors.OpError) as error:
        found = _batch_size(trained, dataset.features)
        if found is None:
            raise ExportError(f"the model cannot be built for batches of any size: {_reason(error)}") from error
        size = found
        note = (
            f"accepts only batches of {size} examples, as in training. It cannot accept other sizes: {_reason(error)}"
        )
        log.warning("the SavedModel %s", note)
    if written is None:
        try:
            written = _write(trained, dataset, size, prefix, folder, note=note)
        except tf.errors.OpError as error:
            raise ExportError(f"checkpoint {prefix} cannot be served: {_reason(error)}") from error
    return written


def _reason(error: ParallaxError | tf.errors.OpError) -> str:
    return reason_in(error.message) if isinstance(error, tf.errors.OpError) else str(error).splitlines()[0]


def _batch_size(served: InferenceGraph, features: Mapping[str, Feature]) -> int | None:
    """Returns the number of examples in the inputs, or None if all inputs are sparse, since sparse inputs do not
    contain this number."""
    for name, feature in features.items():
        ends = 1 if feature.kind == "ragged" else 0  # ragged examples have one more row split than examples
        tensor = served.inputs.get(f"{name}/row_splits" if ends else name)
        if tensor is not None:
            (node,) = (node for node in served.graph_def.node if node.name == tensor.split(":")[0])
            return int(node.attr["shape"].shape.dim[0].size) - ends
    return None


def _write(
    served: InferenceGraph, dataset: Dataset, examples: int, prefix: Path, folder: Path, *, note: str | None
) -> Path:
    """Restores the graph, runs it on an input example, and writes the SavedModel."""
    with tf.Graph().as_default() as graph:
        inputs, example = raw_inputs.imported(served, dataset, examples)
        outputs = {name: _at_least_a_row(graph.get_tensor_by_name(one)) for name, one in served.outputs.items()}
        saver = _saver(graph, served.variables, prefix)
        fill_tables = _fill_tables(graph, served.table_initializers)
        # Uses no GPU, since the training session holds the GPU's memory.
        with tf.Session(config=tf.ConfigProto(device_count={"GPU": 0})) as session:
            if saver is not None:
                with literal(prefix) as path:
                    saver.restore(session, path)
            session.run(fill_tables)
            session.run(outputs, {inputs[name]: array for name, array in example.items()})
            partial = folder.with_name(f".{folder.name}.partial")
            remove(partial)
            builder = tf.saved_model.Builder(str(partial))
            builder.add_meta_graph_and_variables(
                session,
                [tf.saved_model.SERVING],
                signature_def_map={SIGNATURE: tf.saved_model.predict_signature_def(inputs, outputs)},
                assets_collection=[graph.get_tensor_by_name(asset) for asset in served.assets],
                main_op=fill_tables,
                saver=saver,
                strip_default_attrs=True,
            )
            builder.save()
    _describe(partial, inputs, outputs, example, prefix=prefix, note=note)
    remove(folder)
    return partial.rename(folder)


def _fill_tables(graph: tf.Graph, names: Iterable[str]) -> tf.Operation:
    """Returns an op that fills the graph's lookup tables: those of the model, whose initializers have these `names`,
    and those that compute features from raw values."""
    for name in names:
        graph.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, graph.get_operation_by_name(name))
    return tf.group(*graph.get_collection(tf.GraphKeys.TABLE_INITIALIZERS), name="serving/fill_tables")


def _at_least_a_row(tensor: tf.Tensor) -> tf.Tensor:
    """Turns a scalar into a vector, because serving software expects rows."""
    return tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else tensor


def _saver(graph: tf.Graph, variables: Sequence[Variable], prefix: Path) -> tf.train.Saver | None:
    """Returns a Saver for the graph's variables under logical names. A piece is saved as a slice of the whole
    variable."""
    linked = is_linked(sum(size_bytes_of(one) for one in variables))
    made = [_variable(graph, one, is_untouched=linked and is_large(one)) for one in variables]
    if not made:
        return None
    return LinkedCheckpoint(made, variables, prefix) if linked else tf.train.Saver(made)


def _variable(graph: tf.Graph, variable: Variable, *, is_untouched: bool) -> tf.Variable:
    """Wraps the graph's handle in a variable with zeros as its initial value, and adds the variable to the graph's
    collection. `is_untouched` is as in `untouched_zeros`."""
    handle = graph.get_tensor_by_name(f"{variable.name}:0")
    with tf.name_scope(f"serving/{variable.name}/"):
        if is_untouched:
            zeros = untouched_zeros(variable, name="zeros")
        else:
            zeros = tf.zeros(variable.shape, variable.dtype, name="zeros")
        assign = tf.raw_ops.AssignVariableOp(resource=handle, value=zeros, name="assign")
        read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype, name="read")
    proto = variable_pb2.VariableDef(
        variable_name=handle.name,
        initial_value_name=zeros.name,
        initializer_name=assign.name,
        snapshot_name=read.name,
        is_resource=True,
        trainable=False,
    )
    if variable.shape != variable.full_shape:
        proto.save_slice_info_def.CopyFrom(
            variable_pb2.SaveSliceInfoDef(
                full_name=variable.full_name,
                full_shape=variable.full_shape,
                var_offset=variable.offset,
                var_shape=variable.shape,
            )
        )
    made = ResourceVariable.from_proto(proto)
    graph.add_to_collection(tf.GraphKeys.GLOBAL_VARIABLES, made)
    return made


def _describe(
    folder: Path,
    inputs: Mapping[str, tf.Tensor],
    outputs: Mapping[str, tf.Tensor],
    example: Mapping[str, np.ndarray],
    *,
    prefix: Path,
    note: str | None,
) -> None:
    """Writes a description of the SavedModel for users who do not want to import TensorFlow."""
    description = {
        "checkpoint": prefix.name,
        "tags": [tf.saved_model.SERVING],
        "signature": SIGNATURE,
        "inputs": {name: _spec(tensor) for name, tensor in inputs.items()},
        "outputs": {name: _spec(tensor) for name, tensor in outputs.items()},
        "example": {name: _plain(array) for name, array in example.items()},
        "tensorflow": tf.__version__,
        "note": note,
    }
    path = folder / DESCRIPTION
    path.parent.mkdir(exist_ok=True)
    write_whole(path, json.dumps(description, indent=1) + "\n")


def _plain(array: np.ndarray) -> object:
    """Returns the values of an array as lists, and strings as text."""
    is_text = array.dtype.kind == "O"
    return np.char.decode(array.astype(bytes), "utf-8", "replace").tolist() if is_text else array.tolist()


def _spec(tensor: tf.Tensor) -> dict[str, object]:
    """Returns the NumPy dtype and the shape of a tensor. A dimension is -1 if it is unknown, and the shape is None if
    the rank is unknown."""
    shape = None if tensor.shape.rank is None else [-1 if size is None else size for size in tensor.shape.as_list()]
    dtype = "str" if tensor.dtype.base_dtype == tf.string else tensor.dtype.base_dtype.name
    return {"dtype": dtype, "shape": shape}
