"""Adds the placeholder of a replica's share to a captured graph, for steps whose replicas have different numbers of
examples (docs/design/0084)."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.data.shares import SHARE
from parallax_runner.graph.fingerprint import fingerprint_of
from parallax_runner.graph.single_device_graph import SingleDeviceGraph

log = logging.getLogger(__name__)
PLACEHOLDER = "features/share_of_step"


def with_share(single: SingleDeviceGraph) -> SingleDeviceGraph:
    """Returns the graph with one more feature, `SHARE`. Only rewriting reads its placeholder (float64, scalar).

    Validation and serving do not feed it.
    """
    meta_graph = _copy(single.meta_graph)
    placeholder = meta_graph.graph_def.node.add(name=PLACEHOLDER, op="Placeholder")
    placeholder.attr["dtype"].type = tf.float64.as_datatype_enum
    placeholder.attr["shape"].shape.CopyFrom(tf.TensorShape([]).as_proto())
    return dataclasses.replace(
        single,
        meta_graph=meta_graph,
        features={**single.features, SHARE: f"{PLACEHOLDER}:0"},
        validation_features=single.evaluated_by,
        fingerprint=fingerprint_of(meta_graph.graph_def),
    )


def with_batch_size(single: SingleDeviceGraph, batch_size: int) -> SingleDeviceGraph:
    """Returns the same graph, whose dense features have batches of this size, so that shapes and costs can be
    estimated. Returns `single` if its ops do not accept a fixed size."""
    meta_graph = _copy(single.meta_graph)
    placeholders = {name.partition(":")[0] for feature, name in single.features.items() if feature != SHARE}
    for node in meta_graph.graph_def.node:
        shape = node.attr["shape"].shape if node.name in placeholders else None
        if shape is not None and shape.dim and shape.dim[0].size < 0:
            shape.dim[0].size = batch_size
        node.attr.pop("_output_shapes", None)
    try:
        with tf.Graph().as_default():
            tf.import_graph_def(meta_graph.graph_def, name="")
    except ValueError as error:
        log.info("sizes are not estimated, because the graph does not accept batches of one size: %s", error)
        return single
    return dataclasses.replace(single, meta_graph=meta_graph)


def _copy(meta_graph: Any) -> Any:
    copy = type(meta_graph)()
    copy.CopyFrom(meta_graph)
    return copy
