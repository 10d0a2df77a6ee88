"""Checks whether the servers of this TensorFlow build support a protocol."""

from __future__ import annotations

import re

import tensorflow.compat.v1 as tf

from parallax_runner.errors import PlanError, Setting

# Maps the names of server factories, as in TensorFlow's error message, to the names of protocols.
NAMES = {
    "GRPC_SERVER": "grpc",
    "VERBS_SERVER": "grpc+verbs",
    "GDR_SERVER": "grpc+gdr",
    "MPI_SERVER": "grpc+mpi",
}


def check_protocol(protocol: str) -> None:
    """Raises PlanError with a list of the available protocols if this TensorFlow build does not support `protocol`."""
    if protocol == "grpc":  # every build of TensorFlow supports grpc
        return
    try:
        tf.train.Server({"worker": ["127.0.0.1:0"]}, protocol=protocol, start=False)
    except tf.errors.NotFoundError as error:
        factories = re.search(r"available server factories are: \[(.*)\]", str(error))
        names = re.findall(r"\w+", factories[1]) if factories else []
        listed = ", ".join(NAMES.get(name, name) for name in names) or "none"
        raise PlanError(f"this TensorFlow build does not support it; expected one of: {listed}").about(
            Setting.of("comm.ps.protocol", protocol)
        ) from error
