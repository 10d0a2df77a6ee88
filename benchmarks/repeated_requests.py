"""Counts the steps that a TensorFlow server refuses because it takes their requests for repeated ones.

    .venv/bin/python -m benchmarks.repeated_requests --steps 250000
    .venv/bin/python -m benchmarks.repeated_requests --steps 250000 --distinct-seeds

A server and a worker of TensorFlow run on this machine, and each step adds one to a variable on the server. With
`--distinct-seeds`, both have the seeds that the runner gives its processes (`parallax_runner/launch/distinct_seeds.c`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from parallax_runner.launch import preloaded
from parallax_runner.launch.distinct_seeds import seed_apart
from parallax_runner.launch.ports import pick_port

HOST = "127.0.0.1"


def main() -> None:
    """Runs a server, and a worker until it has done its steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=250_000)
    parser.add_argument("--distinct-seeds", action="store_true")
    given = parser.parse_args()
    addresses = [f"{HOST}:{pick_port(HOST)}" for _ in range(2)]
    env = {**os.environ, **preloaded.environment(), "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    program = [sys.executable, "-c", "import sys; from benchmarks.repeated_requests import work; work(*sys.argv[1:])"]
    last = [*addresses, str(given.steps), str(int(given.distinct_seeds))]
    server = subprocess.Popen([*program, "server", *last], env=env, stderr=subprocess.DEVNULL)
    try:
        subprocess.run([*program, "worker", *last], env=env, stderr=subprocess.DEVNULL, check=True)
    finally:
        server.kill()


def work(role: str, server: str, worker: str, steps: str, distinct_seeds: str) -> None:
    """Is the server or the worker; the worker prints the refused steps."""
    import tensorflow.compat.v1 as tf

    from parallax_runner.train.cluster import JOBS

    addresses = {"server": [server], "worker": [worker]}
    if distinct_seeds == "1":
        seed_apart(role, 0, addresses)
    tf.disable_eager_execution()
    cluster = {JOBS[other]: listed for other, listed in addresses.items()}
    joined = tf.train.Server(cluster, JOBS[role], 0)
    if role == "server":
        joined.join()
    with tf.device(f"/job:{JOBS['server']}/task:0"):
        variable = tf.get_variable("v", initializer=1.0, use_resource=True)
        step = variable.assign_add(1.0).op
    session = tf.Session(joined.target)
    session.run(variable.initializer)
    refused = []
    started_secs = time.monotonic()
    for number in range(int(steps)):
        try:
            session.run(step)
        except tf.errors.AbortedError as error:
            if "received twice" not in str(error):
                raise
            refused.append(number)
    secs = time.monotonic() - started_secs
    print(f"refused {len(refused)} of {steps} steps, in {secs:.0f} s: {refused}", flush=True)
    os._exit(0)  # TensorFlow's server has no way to end


if __name__ == "__main__":
    main()
