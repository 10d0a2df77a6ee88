"""TensorFlow's threads get different seeds in all processes of a run, so no server refuses a step as a repeated one."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from parallax_runner.errors import LaunchError
from parallax_runner.launch import preloaded
from parallax_runner.launch.distinct_seeds import seed_apart

ADDRESSES = {"worker": ["127.0.0.1:1", "127.0.0.1:2"], "server": ["127.0.0.1:3"]}
DRAWS = 1000
DRAW = f"""
import ctypes, sys
from parallax_runner.launch.distinct_seeds import seed_apart

if len(sys.argv) > 1:
    seed_apart(sys.argv[1], int(sys.argv[2]), {ADDRESSES})
draw = ctypes.CDLL(None)._ZNSt13random_device9_M_getvalEv
draw.restype = ctypes.c_uint32
print([draw(None) for _ in range({DRAWS})])
"""
# Seeds 2**31 apart are only two, so that a thread soon gets a seed again.
STEPS = """
import ctypes
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
session = tf.Session(tf.train.Server.create_local_server().target)
zero = tf.constant(0).op
for processes in (3, 2**31):
    ctypes.CDLL(None).parallax_distinct_seeds(7, 0, processes)
    try:
        for _ in range(20):
            session.run(zero)
        print("runs")
    except tf.errors.AbortedError as error:
        print("received twice" in str(error))
"""


def run(program: str, *arguments: str) -> str:
    env = {**os.environ, **preloaded.environment({}), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def drawn(*process: str) -> list[int]:
    return ast.literal_eval(run(DRAW, *process))


def test_no_two_threads_of_a_run_get_one_seed() -> None:
    seeds = [*drawn("worker", "0"), *drawn("worker", "1"), *drawn("server", "0")]
    assert len(set(seeds)) == 3 * DRAWS
    assert seeds[:DRAWS] == drawn("worker", "0")  # they belong to the run, whose addresses are the key


def test_outside_a_run_seeds_are_random() -> None:
    one, other = drawn(), drawn()
    assert len({*one, *other}) > DRAWS * 1.9


def test_tensorflow_takes_its_seeds_from_the_library() -> None:
    """If it no longer did, equal seeds would not matter."""
    assert run(STEPS).split() == ["runs", "True"]


def test_a_process_without_the_library_says_so() -> None:
    with pytest.raises(LaunchError, match="is not loaded into this process"):
        seed_apart("worker", 0, ADDRESSES)
