"""A rough prediction of the memory of a process, for the jobs that are submitted to a scheduler."""

import math

from parallax_runner.plan.plan import Plan

# The memory of a process with TensorFlow and no variables.
PROCESS_MIB = 1500
# Copies of each variable and its slots in the chief's memory: the value, a gradient, and a copy for the checkpoint.
COPIES = 3


def variables_bytes(plan: Plan) -> int:
    """Returns the size of all variables and their slots in bytes."""
    return sum(one.size_bytes * (1 + len(one.slots)) for one in plan.variables)


def copies_mib(plan: Plan, processes: int) -> int:
    """Returns the memory in MiB for the copies of all variables and slots in workers and servers."""
    return math.ceil(processes * COPIES * variables_bytes(plan) / 2**20)


def driver_mib(plan: Plan) -> int:
    """Returns the memory in MiB of a driver that is alone on its machine: TensorFlow, and the initial values."""
    return PROCESS_MIB + math.ceil(variables_bytes(plan) / 2**20)


def process_mib(plan: Plan) -> int:
    """Returns the memory in MiB of a worker or server that is alone on its machine."""
    return PROCESS_MIB + copies_mib(plan, 1)
