"""The one function of the package tensorboard that Keras' callback needs. The lock does not have this package, because
TensorFlow for CPUs does not require it. The event files are TensorFlow's own in both cases."""

from typing import Any

import tensorflow as tf


def scalar(name: str, data: Any, step: Any = None, description: str | None = None) -> Any:
    """Writes a scalar to the default writer."""
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = "scalars"
    with tf.summary.experimental.summary_scope(name, "scalar_summary", values=[data, step]) as (tag, _):
        return tf.summary.write(tag=tag, tensor=tf.cast(data, tf.float32), step=step, metadata=metadata)
