"""Classifies ops by how they spend their time. The class depends on the op's type."""

from __future__ import annotations

import re
from enum import Enum

from parallax_runner.collectives.chosen import is_exchange


class OpClass(Enum):
    """How an op spends its time. Ops that are not in `_TABLE` count as computation."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    WAITING = "waiting"


_PUSH = re.compile(r"(Resource|Sparse)?AccumulatorApplyGradient")
# The first pattern that matches an op's whole type determines the class.
_TABLE = (
    # TensorFlow's own collectives, which users' code may contain. A collective lasts from the moment when this rank
    # reaches it until all ranks have the result (see shares.py).
    (r"Collective\w+|Nccl\w+", OpClass.COMMUNICATION),
    # These ops transfer tensors between processes, and between devices of a process. TensorFlow traces only transfers
    # between processes. A transfer lasts from the moment when the sender has the tensor until the receiver has it.
    (r"RecvTensor|_?(Host)?(Recv|Send)", OpClass.COMMUNICATION),
    # These ops send a gradient, or the signal that a step is done, to a server.
    (_PUSH.pattern, OpClass.COMMUNICATION),
    (r"QueueEnqueue(Many)?(V2)?", OpClass.COMMUNICATION),
    # These ops wait until other ranks or threads have delivered a value, and use no processor while they wait.
    (r"(Resource|Sparse)?AccumulatorTakeGradient", OpClass.WAITING),
    (r"QueueDequeue(Many|UpTo)?(V2)?|BarrierTakeMany|Unstage", OpClass.WAITING),
    # The model's input pipeline.
    (r"(Iterator|OptionalIterator|Dataset)\w*GetNext\w*", OpClass.WAITING),
)
_PATTERNS = tuple((re.compile(pattern), op_class) for pattern, op_class in _TABLE)
# A Python call in a graph counts as computation, unless it has the name of a collective: MPI's Allgatherv has no op
# type.
_PYTHON = re.compile(r"(Eager)?PyFunc(Stateless)?")
_PYTHON_COLLECTIVE = re.compile(r"allgatherv", re.IGNORECASE)
_COLLECTIVE = re.compile(_TABLE[0][0])


def class_of(op_type: str, name: str) -> OpClass:
    """Returns the class of an op. Its `name` matters only for Python calls."""
    if is_collective(op_type, name):
        return OpClass.COMMUNICATION
    return next((op_class for pattern, op_class in _PATTERNS if pattern.fullmatch(op_type)), OpClass.COMPUTE)


def is_collective(op_type: str, name: str) -> bool:
    """Returns whether an op is a collective. No rank has the result of a collective before the last rank reaches the
    op."""
    if _PYTHON.fullmatch(op_type):
        return _PYTHON_COLLECTIVE.search(name) is not None
    return is_exchange(op_type) or _COLLECTIVE.fullmatch(op_type) is not None


def is_push(op_type: str) -> bool:
    """Returns whether an op sends a rank's gradient to a server."""
    return _PUSH.fullmatch(op_type) is not None
