"""Configures sessions and servers: threads, devices, and no constant folding.

A server imports this module, so the module imports only protocol buffers from TensorFlow
(`process/tensorflow_import.py`).
"""

from __future__ import annotations

from tensorflow.core.protobuf.config_pb2 import ConfigProto

from parallax_runner.rewrite.exchange.constant_folding import turn_off_constant_folding
from parallax_runner.train.gpu_limits import GpuLimits, hide_gpus


def session_config(
    threads: int,
    device_filters: list[str] | None = None,
    gpus: GpuLimits | None = None,
    cpu_devices: int = 1,
    *,
    soft_placement: bool = False,
) -> ConfigProto:
    """Returns a session configuration with `threads` intra-op threads and `threads` inter-op threads.

    The session does not fold constants. If `gpus` is None, the session uses no GPU. With `soft_placement`, an op
    without a kernel for its device runs on another device.
    """
    config = ConfigProto(
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=threads,
        device_filters=device_filters,
        device_count={"CPU": cpu_devices},
        allow_soft_placement=soft_placement,
    )
    turn_off_constant_folding(config)
    if gpus is None:
        hide_gpus(config)
    else:
        config.gpu_options.CopyFrom(gpus.options())
    return config


def merged(config: ConfigProto, own: ConfigProto | None) -> ConfigProto:
    """Merges a script's own configuration into `config`. Constant folding stays off, as collectives require."""
    if own is not None:
        config.MergeFrom(own)
        turn_off_constant_folding(config)
    return config
