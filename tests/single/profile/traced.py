"""RunMetadata written by hand: what a session would have told of a step."""

from __future__ import annotations

from pathlib import Path

from tensorflow.core.protobuf import config_pb2

from parallax_runner.profile.run_metadata_files import run_metadata_path
from parallax_runner.profile.timeline import StepTimeline, timeline_of

ORIGIN_NS = 1_795_264_602_000_000_000
WORKER_0, WORKER_1 = (f"/job:worker/replica:0/task:{rank}/device:CPU:0" for rank in (0, 1))
SERVER = "/job:ps/replica:0/task:0/device:CPU:0"
ALONE = "/job:localhost/replica:0/task:0/device:CPU:0"

Ran = tuple[str, str, str, float, float]  # device, name, type, start and end in ms


def run_metadata(*ran: Ran) -> config_pb2.RunMetadata:
    """A `RecvTensor`'s name is «BYTES NAME SENDER»."""
    metadata = config_pb2.RunMetadata()
    by_device = {
        device: metadata.step_stats.dev_stats.add(device=device) for device in dict.fromkeys(r[0] for r in ran)
    }
    for device, name, op_type, start_ms, end_ms in ran:
        node = by_device[device].node_stats.add(node_name=name)
        start_ns, took_ns = ORIGIN_NS + round(start_ms * 1e6), round((end_ms - start_ms) * 1e6)
        if op_type == "RecvTensor":
            sent_bytes, name, sender = name.split(" ")
            node.node_name = "RecvTensor"
            node.timeline_label = f"[{sent_bytes}B] [1.0Mb/s] edge_7_{name} from {sender} to {device}"
            node.all_start_micros = start_ns // 1000
            node.op_end_rel_micros = node.all_end_rel_micros = took_ns // 1000
            continue
        node.timeline_label = f"{name} = {op_type}(a, b)"
        # 1 µs before the kernel, and 5 after it, are the executor's.
        node.all_start_nanos, node.all_start_micros = start_ns - 1000, (start_ns - 1000) // 1000
        node.op_start_rel_nanos, node.op_end_rel_nanos = 1000, 1000 + took_ns
        node.all_end_rel_nanos = took_ns + 6000
    return metadata


def timeline(*ran: Ran, rank: int = 0, step: int = 1) -> StepTimeline:
    return timeline_of(run_metadata(*ran), rank=rank, step=step)


def write(folder: Path, *ran: Ran, rank: int = 0, step: int = 1) -> Path:
    path = run_metadata_path(folder, rank=rank, step=step)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(run_metadata(*ran).SerializeToString())
    return path
