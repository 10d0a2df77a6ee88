"""`python -m benchmarks.exchange_sizes [--hosts 4] [--mbit 200] [--backends native,horovod]`: how long exchanges of
several sizes take between hosts with links of a given speed, beside the time that their bytes need.

The hosts are network namespaces, as in `scripts/bench --hosts`. Each exchange begins when all ranks are ready.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from benchmarks.hosts import network
from benchmarks.hosts.cluster import Cluster, python, shaped
from parallax_runner.collectives import ops
from parallax_runner.collectives.chosen import BACKENDS, choose

KIB_A_PAIR = (4, 64, 256, 1024)
KIB_SUMMED = (4, 256, 3072)
REPEATS = 9
KIB = 1024


def main(arguments: Sequence[str]) -> int:
    """Measures, and prints a line for each exchange."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exchange_sizes", description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--mbit", type=int, default=200)
    parser.add_argument("--backends", default="native,horovod")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)  # this process is a rank that uses the named backend
    asked = parser.parse_args(arguments)
    if asked.rank_of:
        _measure(asked.rank_of, asked.mbit)
        return 0
    network.enter(python("benchmarks.exchange_sizes", *arguments))
    with shaped(asked.hosts, network.Link(asked.mbit)) as cluster:
        return max(_run(cluster, backend, asked.mbit) for backend in asked.backends.split(","))


def _run(cluster: Cluster, backend: str, mbit: int) -> int:
    argv, env = cluster.mpirun(python("benchmarks.exchange_sizes", "--rank-of", backend, "--mbit", str(mbit)))
    return subprocess.run(argv, env=os.environ | env, check=False).returncode


def _measure(backend: str, mbit: int) -> None:
    tf.disable_eager_execution()
    choose(BACKENDS[backend])
    rank, size = ops.join()
    with tf.Graph().as_default(), tf.Session() as session:
        ready = ops.sum_of_one(tf.ones([1]), name="ready")
        exchanges: dict[str, tuple[tf.Tensor, float]] = {}
        for kib in KIB_A_PAIR:
            rows = _drawn([kib * size, KIB // 4])
            came, _ = ops.all_to_all(rows, tf.fill([size], kib), name=f"rows_{kib}")
            exchanges[f"all to all, {kib} KiB a pair"] = (came, kib * KIB * (size - 1))
        for kib in KIB_SUMMED:
            summed = ops.sum_of_one(_drawn([kib * KIB // 4]), name=f"sum_{kib}")
            exchanges[f"sum of {kib} KiB"] = (summed, 2 * kib * KIB * (size - 1) / size)
        for name, (tensor, sent_bytes) in exchanges.items():
            times_ms = [_once_ms(session, ready, tensor) for _ in range(REPEATS)][1:]
            link_ms = sent_bytes * 8 / (mbit * 1000)
            if rank == 0:
                median, low, high = statistics.median(times_ms), min(times_ms), max(times_ms)
                print(f"{backend:8} {name:28} {median:7.1f} ms ({low:.1f} to {high:.1f}), bytes alone {link_ms:.1f} ms")


def _drawn(shape: list[int]) -> tf.Tensor:
    """Returns numbers that are equal to each other, but drawn in each run: TensorFlow computes Horovod's exchange of a
    constant once only."""
    return tf.fill(shape, tf.random.uniform([]))


def _once_ms(session: tf.Session, ready: tf.Tensor, tensor: tf.Tensor) -> float:
    """Returns the time of one exchange on this rank."""
    session.run(ready)
    began = time.monotonic()
    session.run(tensor)
    return 1000 * (time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
