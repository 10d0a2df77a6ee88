"""`mpirun -np N python -m benchmarks.exchange_wait [--secs S]`: how much of a core the thread of the native exchanges
uses while a rank waits for rank 0.

Counts the CPU time of this thread alone (the kernel's schedstat), and that of the whole process, which includes Python
and TensorFlow.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import tensorflow.compat.v1 as tf

from parallax_runner.collectives import ops
from parallax_runner.collectives.chosen import BACKENDS, choose

THREAD = "exchanges"  # as the library names it


def thread_secs(name: str) -> float:
    """Returns the CPU time of this process's thread of a name. Raises LookupError if there is none."""
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            return int((task / "schedstat").read_text().split()[0]) / 1e9
    raise LookupError(f"this process has no thread {name!r}")


def main(arguments: Sequence[str]) -> int:
    """Prints a line for each rank that waits."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exchange_wait", description=__doc__)
    parser.add_argument("--secs", type=float, default=10.0, help="how long rank 0 lets the others wait (default 10)")
    asked = parser.parse_args(arguments)
    tf.disable_eager_execution()
    choose(BACKENDS["native"])
    rank, _ = ops.join()
    with tf.Graph().as_default(), tf.Session() as session:
        summed = ops.sum_of_one(tf.ones([1000]), name="waits")
        session.run(summed)
        if rank == 0:
            time.sleep(asked.secs)
        began, own, process = time.monotonic(), thread_secs(THREAD), time.process_time()
        session.run(summed)
        waited = time.monotonic() - began
        if rank != 0:
            of_thread, of_process = (thread_secs(THREAD) - own) / waited, (time.process_time() - process) / waited
            print(f"rank {rank} waited {waited:.2f} s: thread {of_thread:.2%} of a core, process {of_process:.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
