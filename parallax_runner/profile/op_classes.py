"""The one table of what an op's time is spent on, by the type of the op."""

from __future__ import annotations

import re
from enum import Enum


class OpClass(Enum):
    """What is not in the table below computes."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    WAITING = "waiting"


_PUSH = re.compile(r"(Resource|Sparse)?AccumulatorApplyGradient")
# The first line that matches an op's whole type decides.
_TABLE = (
    # What ranks do together. It lasts from when this rank comes to it until all have it: see shares.py.
    (r"Horovod\w+|Collective\w+|Nccl\w+", OpClass.COMMUNICATION),
    # Tensors between processes, and between devices of one. TensorFlow traces those between processes only, from when
    # the sender has the tensor until the receiver has it.
    (r"RecvTensor|_?(Host)?(Recv|Send)", OpClass.COMMUNICATION),
    # Handing a gradient, or the word that a step is done, to a server.
    (_PUSH.pattern, OpClass.COMMUNICATION),
    (r"QueueEnqueue(Many)?(V2)?", OpClass.COMMUNICATION),
    # They return when others have come that far, and use no processor until then.
    (r"(Resource|Sparse)?AccumulatorTakeGradient", OpClass.WAITING),
    (r"QueueDequeue(Many|UpTo)?(V2)?|BarrierTakeMany|Unstage", OpClass.WAITING),
    # The input pipeline of a model that has one.
    (r"(Iterator|OptionalIterator|Dataset)\w*GetNext\w*", OpClass.WAITING),
)
_PATTERNS = tuple((re.compile(pattern), op_class) for pattern, op_class in _TABLE)
# Python that a graph calls computes, unless it is one of these: MPI's Allgatherv goes by no type of its own.
_PYTHON = re.compile(r"(Eager)?PyFunc(Stateless)?")
_PYTHON_COLLECTIVE = re.compile(r"allgatherv", re.IGNORECASE)
_COLLECTIVE = re.compile(_TABLE[0][0])


def class_of(op_type: str, name: str) -> OpClass:
    """The class of an op; its `name` counts for calls of Python only."""
    if is_collective(op_type, name):
        return OpClass.COMMUNICATION
    return next((op_class for pattern, op_class in _PATTERNS if pattern.fullmatch(op_type)), OpClass.COMPUTE)


def is_collective(op_type: str, name: str) -> bool:
    """Whether ranks do this together, so that nobody has it before the last one has come."""
    if _PYTHON.fullmatch(op_type):
        return _PYTHON_COLLECTIVE.search(name) is not None
    return _COLLECTIVE.fullmatch(op_type) is not None


def is_push(op_type: str) -> bool:
    """Whether an op hands a rank's gradient to a server."""
    return _PUSH.fullmatch(op_type) is not None
