"""A tf.Session for graphs with collectives."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.collectives import ops as collectives
from parallax_runner.errors import CollectiveError
from parallax_runner.frontdoors.mpi_collectives.ranks import join
from parallax_runner.rewrite.exchange.constant_folding import turn_off_constant_folding


class Session(tf.Session):
    """A tf.Session that joins the other ranks when it opens.

    The session uses one device. If there are several GPUs and `config` chooses none of them, the device is the GPU
    whose index is this process's local rank modulo the number of GPUs. One thread evaluates the graph, and constants
    are not folded (rewrite/exchange/constant_folding.py). To use another kind of session, run `init` in it and give it
    an equivalent configuration.
    """

    # TensorFlow's __del__ reads this attribute, even in a session that was rejected before it was opened.
    _session = None

    def __init__(self, target: str = "", graph: tf.Graph | None = None, config: tf.ConfigProto | None = None) -> None:
        """Joins the other ranks. Raises CollectiveError if Gloo connects the ranks, or if `config` makes several GPUs
        visible to this process."""
        join()
        super().__init__(target, graph, config=for_one_rank(config, len(tf.config.list_physical_devices("GPU"))))


def for_one_rank(config: tf.ConfigProto | None, gpus: int) -> tf.ConfigProto:
    """Returns a copy of `config`, adapted for one rank on a host where this process sees `gpus` GPUs."""
    adapted = tf.ConfigProto()
    if config is not None:
        adapted.CopyFrom(config)
    adapted.device_count["CPU"] = 1
    adapted.inter_op_parallelism_threads = 1
    # Otherwise all sessions of a process would share the thread pool of the first session.
    adapted.use_per_session_threads = True
    turn_off_constant_folding(adapted)
    visible = adapted.gpu_options.visible_device_list
    if "," in visible:
        raise CollectiveError(
            f"mpi_collectives.Session: visible_device_list={visible!r}, expected one GPU per process. "
            "Choose the GPU by local rank, or leave the list empty"
        )
    if gpus > 1 and not visible:
        adapted.gpu_options.visible_device_list = str(collectives.local_rank() % gpus)
    return adapted
