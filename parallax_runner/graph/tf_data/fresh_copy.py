"""Copies of a `tf.data.Dataset` in the state that it had before it was first read.

A shuffle stores the seeds of its next pass in a resource of the process, and a cache stores its elements in another.
Reading a dataset object therefore changes what the next reader receives. A copy has its own resources.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from parallax_runner.errors import DataError
from parallax_runner.graph.all_nodes import all_nodes, nodes_in_functions
from parallax_runner.graph.tables import WHY_REFUSED, is_table, why_tables_fail
from parallax_runner.graph.tf_data.early_shard import shard_early
from parallax_runner.graph.tf_data.first_examples import without_shuffles
from parallax_runner.graph.tf_data.length import equally_long, output_of

# Maps each op that keeps state between passes to the op that creates an empty resource for it.
KEEPING = {
    "ShuffleDatasetV3": "DummySeedGenerator",
    "ShuffleAndRepeatDatasetV2": "DummySeedGenerator",
    "RandomDatasetV2": "DummySeedGenerator",
    "CacheDatasetV2": "DummyMemoryCache",
}
# Ops that open their inputs immediately and only once. Once such ops are open, every shuffle has drawn its seeds for
# the pass.
OPENING_AT_ONCE = {
    *("BatchDatasetV2", "ParallelBatchDataset", "PaddedBatchDatasetV2", "UnbatchDataset", "MapDataset"),
    *("ParallelMapDatasetV2", "FilterDataset", "ShardDataset", "SkipDataset", "TakeDataset", "PrefetchDataset"),
    *("OptionsDataset", "ShuffleDatasetV3", "ZipDataset", "FlatMapDataset", "InterleaveDataset"),
    *("ParallelInterleaveDatasetV4", "RangeDataset", "TensorDataset", "TensorSliceDataset", "TextLineDataset"),
    *("TFRecordDataset", "TFRecordDatasetV2", "FixedLengthRecordDatasetV2", "DirectedInterleaveDataset"),
}
# Elements in a window, which are in memory together, and windows per read. A signal can end the process between two
# reads.
WINDOW, WINDOWS = 64, 16
LARGE = 2**16  # size of a constant in bytes
LIMIT = 2**31 - 2**20  # size of a serialized graph in bytes


@dataclass(frozen=True, eq=False)
class FreshCopies:
    """Makes copies of a dataset.

    `graph_def` creates the dataset, with placeholders for the arrays `large`. `element_spec` is the type of its
    elements, and `options` are its options. `kept_alive` owns the Python functions and resources that the graph refers
    to, if it refers to any.
    """

    graph_def: Any
    large: Mapping[str, Any]
    element_spec: Any
    options: Any
    kept_alive: Any = None

    @classmethod
    def of(cls, dataset: Any, what: str) -> FreshCopies:
        """Returns an object that copies `dataset`. Raises DataError if the dataset is too large to be serialized, or if
        it uses a lookup table that is mutable or has no content."""
        size = sum(_bytes_held(dataset))
        if size > LIMIT:
            raise DataError(
                f"{what} contains arrays of {size} bytes, but a tf.data.Dataset can contain at most 2 GB here: pass "
                "the arrays (x, y) to fit, or read them from files"
            )
        graph_def = graph_of(dataset)
        _renew(graph_def)
        reason = WHY_REFUSED if any(map(is_table, _held(graph_def))) else why_tables_fail(graph_def)
        if reason is not None:
            raise DataError(f"{what}: {reason}")
        return cls(graph_def, _without_large(graph_def), dataset.element_spec, dataset.options(), dataset)

    @functools.cached_property
    def keeps_nothing(self) -> bool:
        """Whether the dataset has no state between passes."""
        return not any(node.op in KEEPING for node in all_nodes(self.graph_def))

    @functools.cached_property
    def opening_takes_seeds(self) -> bool:
        """Whether every shuffle has drawn its seeds for a pass once the dataset is open."""
        datasets = {node.op for node in self.graph_def.node if "Dataset" in node.op}
        # Datasets inside functions, as in flat_map, are opened later.
        inner = {node.op for node in nodes_in_functions(self.graph_def)}
        return datasets <= OPENING_AT_ONCE and not inner & set(KEEPING)

    @property
    def counted_output(self) -> str:
        """The output of `graph_def` that `counts` reads."""
        return equally_long(self.graph_def)[0]

    def make(self, rank: int = 0, ranks: int = 1) -> Any:
        """Makes a copy eagerly and returns it. The copy yields every `ranks`-th element, starting with element `rank`.
        Copies share their large arrays."""
        graph_def = copy.deepcopy(self.graph_def)
        if ranks > 1:
            keeps_order = self.options.deterministic is not False
            shard_early(graph_def, rank, ranks, cardinality=self._cardinality, keeps_order=keeps_order)
        made = dataset_ops._VariantDataset(self._imported(graph_def, output_of(graph_def)), self.element_spec)
        return made.with_options(self.options)

    def unshuffled(self) -> Any:
        """Makes a copy without the shuffles and caches of the pipeline."""
        graph_def = without_shuffles(self.graph_def)
        made = dataset_ops._VariantDataset(self._imported(graph_def, output_of(graph_def)), self.element_spec)
        return made.with_options(self.options)

    def counts(self, most: int | None = None) -> Iterator[int]:
        """Reads the dataset without the transformations that `equally_long` skips, and yields numbers of elements.
        Reads at most `most` elements."""
        output, types = equally_long(self.graph_def)
        read = dataset_ops._VariantDataset(self._imported(self.graph_def, output), types)
        if most is not None:
            read = read.take(most)
        # TensorFlow fills a window in C++. A function that is called for each element would take ten times as long.
        windows = read.window(WINDOW).map(lambda *parts: tf.nest.flatten(parts)[0].cardinality())
        for numbers in windows.batch(WINDOWS).with_options(self.options):
            yield int(tf.reduce_sum(numbers))

    def _imported(self, graph_def: Any, output: str) -> Any:
        """Imports `graph_def` and returns its tensor `output`, which is the variant tensor of a dataset."""
        wrapped = tf.compat.v1.wrap_function(
            lambda: tf.import_graph_def(
                graph_def,
                input_map={f"{name}:0": tf.convert_to_tensor(array) for name, array in self.large.items()},
                return_elements=[output if ":" in output else f"{output}:0"],
            )[0],
            [],
        )
        return wrapped()

    def _cardinality(self, output: str) -> int:
        return int(tf.raw_ops.DatasetCardinality(input_dataset=self._imported(self.graph_def, output)))


def graph_of(dataset: Any) -> Any:
    """Returns the GraphDef that creates a dataset."""
    ignore = tf.data.experimental.ExternalStatePolicy.IGNORE
    serialized = dataset._as_serialized_graph(external_state_policy=ignore)
    return tf.compat.v1.GraphDef.FromString(serialized.numpy())


def _renew(graph_def: Any) -> None:
    """Replaces the resources that contain the state of datasets with new resources.

    Each constant that refers to a resource becomes an op that creates a resource. Constants that refer to the same
    resource become one op, because they come from one dataset that is read in several places.
    """
    names = {node.name: node for node in graph_def.node}
    owners: dict[tuple[str, bytes], str] = {}
    renamed: dict[str, str] = {}
    for node in graph_def.node:
        for source in _resources(node, names):
            handle = source.attr["value"].tensor.resource_handle_val[0]
            renamed[node.name] = owners.setdefault((handle.container, handle.name), node.name)
    for node in graph_def.node:
        for source in _resources(node, names):
            source.op = KEEPING[node.op]
            source.attr.clear()
        node.input[:] = [_with(renamed, name) for name in node.input]


def _without_large(graph_def: Any) -> dict[str, Any]:
    """Removes the values of large constants, because TensorFlow imports them slowly, and returns the values as
    tensors."""
    constants = [node for node in graph_def.node if node.op == "Const" and node.ByteSize() > LARGE]
    large = {node.name: node.attr["value"].tensor for node in constants}
    # NumPy's reader of tensors cannot read strings that TensorFlow has packed.
    values = {name: tf.io.parse_tensor(one.SerializeToString(), tf.as_dtype(one.dtype)) for name, one in large.items()}
    for node in constants:
        node.op = "Placeholder"
        node.attr.clear()
        node.attr["dtype"].type = values[node.name].dtype.as_datatype_enum
    return values


def _resources(node: Any, names: dict[str, Any]) -> list[Any]:
    """Returns the constants that refer to the resource with a node's state."""
    sources = [names.get(name.split(":")[0]) for name in node.input] if node.op in KEEPING else []
    return [each for each in sources if each is not None and each.op == "Const" and _type(each) == tf.resource]


def _held(graph_def: Any) -> Iterator[Any]:
    """Yields the resources of this process that the graph refers to, such as variables. TensorFlow has written the
    content of other tables into the graph."""
    for node in graph_def.node:
        if node.op == "Const" and _type(node) == tf.resource:
            alone = tf.compat.v1.GraphDef(node=[node])
            yield tf.compat.v1.wrap_function(functools.partial(_output_of_node, alone, node.name), [])()


def _output_of_node(graph_def: Any, name: str) -> Any:
    return tf.import_graph_def(graph_def, return_elements=[f"{name}:0"])[0]


def _type(constant: Any) -> Any:
    return tf.as_dtype(constant.attr["dtype"].type)


def _with(renamed: dict[str, str], name: str) -> str:
    """Returns the name of an input after nodes are renamed."""
    node, colon, output = name.partition(":")
    return renamed.get(node, node) + colon + output


def _bytes_held(dataset: Any) -> Iterator[int]:
    """Yields the sizes, in bytes, of the tensors that a dataset slices or repeats."""
    for tensor in getattr(dataset, "_tensors", ()):
        if tensor.shape.is_fully_defined():
            yield int(np.prod(tensor.shape, dtype=np.int64)) * tensor.dtype.size
    for source in dataset._inputs():
        yield from _bytes_held(source)
