"""TensorFlow's servers in a process whose environment names a proxy that does not answer."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from parallax_runner.launch.ports import pick_port
from parallax_runner.launch.proxies import connect_directly

# Nothing listens there.
PROXY = "http://127.0.0.1:9"
# Two servers in one process; the first runs an op on the second, by way of gRPC.
CODE = """
import os, sys
from parallax_runner.launch.proxies import connect_directly
from parallax_runner.process.tensorflow_import import import_servers_part

connect_directly()
import_servers_part()
from tensorflow.python.client.session import Session
from tensorflow.python.framework import constant_op, ops
from tensorflow.python.training import server_lib

cluster = server_lib.ClusterSpec({"one": sys.argv[1:]})
first, second = (server_lib.Server(cluster, job_name="one", task_index=index) for index in (0, 1))
try:
    with ops.Graph().as_default(), ops.device("/job:one/task:1"):
        there = constant_op.constant(20)
        with Session(first.target) as session:
            print("computed", session.run(there), flush=True)
finally:
    os._exit(0)
"""


def test_servers_of_a_run_connect_without_the_proxy() -> None:
    """Without `connect_directly`, the session waits for the other server for ever."""
    addresses = [f"127.0.0.1:{pick_port('127.0.0.1')}" for _ in range(2)]
    done = subprocess.run(
        [sys.executable, "-c", CODE, *addresses],
        env=os.environ | {"grpc_proxy": PROXY, "http_proxy": PROXY, "no_proxy": "example.com"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "computed 20" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("environ", "listed"),
    [
        ({}, "0.0.0.0/0"),
        ({"no_proxy": "example.com"}, "example.com,0.0.0.0/0"),
        ({"no_proxy": "example.com", "no_grpc_proxy": "other.example"}, "other.example,0.0.0.0/0"),
        ({"no_grpc_proxy": ""}, "0.0.0.0/0"),
    ],
)
def test_what_the_user_exempts_stays_exempt(environ: dict[str, str], listed: str) -> None:
    connect_directly(environ)
    assert environ["no_grpc_proxy"] == listed
