"""A server for matrix_worker: `python -m tests.parallel.matrix_server RUN_DIR INDEX`."""

from __future__ import annotations

import sys
from pathlib import Path

from parallax_runner.launch.child import run_child
from parallax_runner.launch.control.client import ControlClient
from parallax_runner.train.cluster import join_cluster


def serve(run_dir: Path, index: int, client: ControlClient) -> None:
    """Serves all cases of a launch."""
    server = join_cluster(client, role="server", index=index, threads=1)
    client.wait_for_stop()
    client.done()
    del server


if __name__ == "__main__":
    run_child("server", int(sys.argv[2]), Path(sys.argv[1]), serve)
