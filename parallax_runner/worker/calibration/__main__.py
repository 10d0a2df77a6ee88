"""One rank of a calibration. mpirun runs `python -m parallax_runner.worker.calibration RUN_DIR`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from parallax_runner.collectives.chosen import BACKENDS, choose
from parallax_runner.config import frozen
from parallax_runner.config.resource_info import read_hosts
from parallax_runner.launch.child import run_child
from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.launch.control.client import ControlClient, rank_from_environ
from parallax_runner.launch.proof import World, claim
from parallax_runner.plan import plan
from parallax_runner.process.stage_times import log_to_stderr
from parallax_runner.process.tensorflow_import import import_tensorflow

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf


def calibrate(run_dir: Path, rank: int, client: ControlClient) -> None:
    """Times exchanges among all ranks and with servers, and then updates on rank 0. Sends the chief's samples to the
    driver."""
    log_to_stderr()
    import_tensorflow()
    import tensorflow.compat.v1 as tf

    from parallax_runner.collectives import ops as collectives
    from parallax_runner.train.cluster import join_cluster
    from parallax_runner.train.session_config import session_config
    from parallax_runner.worker.calibration import probes

    config, job = frozen.load(run_dir), plan.load(run_dir / plan.FILE_NAME)
    threads = config.cluster.threads_per_worker
    choose(BACKENDS[job.options.backend])
    world = World(*collectives.join())
    client.prove(claim(run_dir, world))
    client.wait_until_proven()
    server = join_cluster(client, role="worker", index=rank, threads=threads, protocol=config.comm.ps.protocol)
    filters = ["/job:ps", f"/job:worker/task:{rank}"]

    def in_cluster(graph: tf.Graph) -> tf.Session:
        return tf.Session(server.target, graph=graph, config=session_config(threads, filters))

    def alone(graph: tf.Graph) -> tf.Session:
        return tf.Session(graph=graph, config=session_config(threads))

    client.doing = Activity(Kind.TIMING_EXCHANGES)
    host = _host_of(rank, config.cluster.resource_info)
    samples = probes.exchanges(
        rank, ranks=world.size, server=(host + 1) % job.servers, servers=job.servers, open_session=in_cluster
    )
    if rank == 0:
        client.doing = Activity(Kind.TIMING_UPDATES)
        samples += probes.work(alone)
    client.done(samples=[dataclasses.asdict(sample) for sample in samples] if rank == 0 else [])


def _host_of(rank: int, resource_info: Sequence[str] | None) -> int:
    """Returns the index of a rank's host. Ranks fill the hosts' slots in order, and start again at the first slot if
    there are too few slots."""
    if resource_info is None:
        return 0
    slots = [number for number, host in enumerate(read_hosts(list(resource_info))) for _ in host.slots]
    return slots[rank % len(slots)]


if __name__ == "__main__":
    run_child("worker", rank_from_environ(), Path(sys.argv[1]), calibrate)
