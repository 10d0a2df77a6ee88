"""A rank that runs many cases in one launch: `python -m tests.parallel.matrix_worker RUN_DIR`."""

from __future__ import annotations

import functools
import json
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.collectives import ops as collectives
from parallax_runner.collectives.chosen import BACKENDS, DEFAULT, choose
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.launch.child import run_child
from parallax_runner.launch.control.client import ControlClient, rank_from_environ
from parallax_runner.rewrite import passes
from parallax_runner.rewrite.distributed_graph import DistributedGraph, Piece
from parallax_runner.routes.alltoall.over_ranks import RankRows
from parallax_runner.routes.ps.reshard import reshard
from parallax_runner.shipment.graph_file import VALUES, load_graph, save_graph
from parallax_runner.shipment.stored_values import python_op, with_stored_values, write_values
from parallax_runner.train.cluster import join_cluster
from parallax_runner.train.lookahead_steps import StepsAhead, give_pools
from parallax_runner.train.session_config import session_config
from parallax_runner.train.sessions import device_filters, initialize
from parallax_runner.worker.segments import take_over
from tests.parallel import lookahead_faults, traced_faults
from tests.parallel.cases import CPU_DEVICES, SEED, STEPS, Case
from tests.parallel.faults import passes_with

THREADS = 1  # TensorFlow threads of a rank


def work(run_dir: Path, rank: int, client: ControlClient) -> None:
    """Runs the cases of `cases.json` through the default backend."""
    choose(BACKENDS[DEFAULT])
    run_cases(run_dir, rank, client)


def run_cases(run_dir: Path, rank: int, client: ControlClient) -> None:
    """Runs each case of `cases.json` and writes this rank's initial and final variables, and losses."""
    collectives.join(may_fuse=False)
    server = join_cluster(client, role="worker", index=rank, threads=THREADS, cpu_devices=CPU_DEVICES)
    for number, fields in enumerate(json.loads((run_dir / "cases.json").read_text())):
        try:
            case = Case(**fields)
            with traced_faults.planted(case.fault), lookahead_faults.planted(case.fault):
                run_case(run_dir, number, case, rank, server.target)
        except Exception as error:
            raise RuntimeError(f"case {number}: {fields}") from error
    client.done()


def run_case(run_dir: Path, number: int, case: Case, rank: int, target: str) -> None:
    """Runs one case, from capture to its last step; the chief's last step is traced."""
    single = received(case.single(), run_dir / f"{number}_shipment_{rank}")
    plans = case.plans(single)
    losses, sent, metadata = [], 0.0, tf.RunMetadata()
    of_rank_0 = case.fault == "data_of_rank_0"
    for segment, plan in enumerate(plans):
        steps = range(segment * STEPS // len(plans), (segment + 1) * STEPS // len(plans))
        original = passes.all_passes
        passes.all_passes = functools.partial(passes_with, case.fault, original())
        distributed = passes.rewrite_for_rank(
            single, plan, rank=rank, seed=SEED, first_step=steps[0], skip_nonfinite=case.spoilt_step is not None
        )
        passes.all_passes = original
        checkpoints, reads = CheckpointOps(distributed), read_ops(distributed)
        recut = reshard(distributed.graph, plans[segment - 1], plan) if segment else None
        config = session_config(
            THREADS, cpu_devices=CPU_DEVICES, device_filters=device_filters(distributed) if plan.servers else None
        )
        if distributed.ahead is not None:
            give_pools(config)
        with tf.Session(target if plan.servers else "", graph=distributed.graph, config=config) as session:
            ahead = None if distributed.ahead is None else StepsAhead(distributed.ahead, session)
            if recut is not None:
                take_over(session, distributed, recut)
            else:
                initialize(session, distributed, checkpoints, None)
                save(run_dir / f"{number}_initial_{rank}.npz", values(session, reads))
            for step in steps:
                feed = {}
                for replica, features in enumerate(distributed.features, start=rank * case.replicas):
                    batch = case.batch(step, 0 if of_rank_0 else replica)
                    feed |= {features[name]: array for name, array in batch.items()}
                trace = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE) if rank == 0 and step == STEPS - 1 else None
                fetches = [distributed.loss, distributed.sent_bytes, distributed.train_op]
                if ahead is not None:
                    following = None if step == STEPS - 1 else case.batch(step + 1, 0 if of_rank_0 else rank)
                    feed |= ahead.start(batch, following)
                loss, sent, _ = session.run(fetches, feed, options=trace, run_metadata=metadata if trace else None)
                if ahead is not None:
                    ahead.finish()
                losses.append(loss)
            if plan is not plans[-1]:
                meet(run_dir, f"{number}_{segment}", case.ranks, rank)
                continue
            save(run_dir / f"{number}_final_{rank}.npz", values(session, reads))
            if distributed.validation_loss is not None:
                batch = case.validation_batch(rank)
                feed = {distributed.validation_features[name]: array for name, array in batch.items()}
                save(run_dir / f"{number}_validation_{rank}.npz", session.run(evaluated(single, distributed), feed))
            if case.recuts and (rank == 0 or checkpoints.is_collective):
                save(run_dir / f"{number}_saved_{rank}.npz", checkpoints.snapshot(session))
    save(run_dir / f"{number}_losses_{rank}.npz", {"losses": np.array(losses), "sent_bytes": np.array(sent)})
    if rank == 0:
        (run_dir / f"{number}_trace.json").write_text(json.dumps(executed(metadata)))


def received(single: SingleDeviceGraph, folder: Path) -> SingleDeviceGraph:
    """Returns a graph as a worker loads it from the driver's files, unless it calls Python."""
    if python_op(single) is not None:
        return single
    folder.mkdir(parents=True)
    stored = with_stored_values(single)
    write_values(stored, folder / VALUES)
    save_graph(stored.single, folder, libraries=[])
    return load_graph(folder)


def evaluated(single: SingleDeviceGraph, distributed: DistributedGraph) -> dict[str, tf.Tensor]:
    """Returns a batch's results without training: its loss, its contribution to metrics, and the model's
    predictions."""
    found = {"loss": distributed.validation_loss}
    found |= {f"sums/{number}": tensor for number, tensor in enumerate(distributed.validation_metric_sums)}
    for output, name in single.outputs.items():
        tensor = distributed.stands_for.get(name)
        found[f"outputs/{output}"] = distributed.graph.get_tensor_by_name(name) if tensor is None else tensor
    return found


def meet(run_dir: Path, name: str, ranks: int, rank: int) -> None:
    """Returns when all ranks have arrived; like the driver's order, this ensures that no rank is in a step."""
    (run_dir / f"{name}_{rank}.there").touch()
    while not all((run_dir / f"{name}_{other}.there").exists() for other in range(ranks)):
        time.sleep(0.01)


def executed(metadata: tf.RunMetadata) -> list[tuple[str, str]]:
    """Returns (device, «name = Type(inputs)») of every op that ran."""
    return [
        (device.device, node.timeline_label)
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        if node.timeline_label
    ]


def read_ops(distributed: DistributedGraph) -> dict[str, list[tuple[Piece, tf.Tensor]]]:
    """Returns ops that read each variable: all variables on the chief, and only those with a copy per rank on the
    others."""
    reads: dict[str, list[tuple[Piece, tf.Tensor]]] = {}
    with distributed.graph.as_default():
        for variable in distributed.variables:
            if distributed.rank and any(piece.is_shared for piece in variable.pieces):
                continue
            reads[variable.name] = []
            for piece in variable.pieces:
                reads[variable.name].append((piece, piece.read().values))
    return reads


def values(session: tf.Session, reads: dict[str, list[tuple[Piece, tf.Tensor]]]) -> dict[str, np.ndarray]:
    """Returns variables in full shapes, assembled from their pieces.

    One run reads all variables, because TensorFlow prunes and optimizes the graph again for each new set of fetches.
    """
    found = {}
    read = session.run({name: [value for _, value in pieces] for name, pieces in reads.items()})
    for name, pieces in reads.items():
        parts = read[name]
        if any(isinstance(piece, RankRows) and piece.shard.offset for piece, _ in pieces):
            continue  # this rank only took part in the read; the chief has the values
        ends = [[slice_.stop - slice_.step + 1 for slice_ in piece.where] for piece, _ in pieces]
        full = np.zeros(np.max(ends, axis=0).astype(int), parts[0].dtype)
        for (piece, _), part in zip(pieces, parts, strict=True):
            full[piece.where] = part
        found[name] = full
    return found


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes an .npz file; slashes in names are kept."""
    with open(path, "wb") as file:
        np.savez(file, **arrays)


if __name__ == "__main__":
    run_child("worker", rank_from_environ(), Path(sys.argv[1]), work)
