"""From RunMetadata to ops."""

from pathlib import Path

import pytest

from parallax_runner.profile.op_classes import OpClass
from parallax_runner.profile.timeline import Process, read_timeline
from tests.single.profile.traced import ALONE, ORIGIN_NS, SERVER, WORKER_0, WORKER_1, run_metadata, timeline

MS = 1_000_000


def test_an_op_has_its_type_its_place_and_the_time_of_its_kernel() -> None:
    (op,) = timeline((WORKER_1, "layer/MatMul", "_MklMatMul", 2, 5), rank=1).ops
    assert (op.name, op.type, op.op_class) == ("layer/MatMul", "_MklMatMul", OpClass.COMPUTE)
    assert (op.process, op.device) == (Process(is_server=False, index=1), "CPU:0")
    assert (op.start_ns - ORIGIN_NS, op.end_ns - ORIGIN_NS) == (2 * MS, 5 * MS)


def test_a_transfer_has_its_bytes_and_the_op_it_comes_from() -> None:
    (op,) = timeline((WORKER_0, f"768 shards/lookup {SERVER}", "RecvTensor", 1, 3)).ops
    assert (op.name, op.type, op.sent_bytes, op.sender) == ("shards/lookup", "RecvTensor", 768, "server 0 CPU:0")
    assert (op.start_ns - ORIGIN_NS, op.end_ns - ORIGIN_NS) == (1 * MS, 3 * MS)
    assert op.op_class is OpClass.COMMUNICATION


def test_a_session_without_a_cluster_is_its_ranks_own_process() -> None:
    (op,) = timeline((ALONE, "a", "Add", 0, 1), rank=3).ops
    assert str(op.process) == "worker 3"


def test_memory_in_a_label_and_names_of_kernels_are_understood() -> None:
    metadata = run_metadata((WORKER_0, "a", "Add", 0, 1), (WORKER_0, "b:MatMul", "x", 1, 2))
    ops = metadata.step_stats.dev_stats[0].node_stats
    ops[0].timeline_label = "[cpu 1.2MB 0.5MB] " + ops[0].timeline_label
    ops[1].timeline_label = "volta_sgemm"
    metadata.step_stats.dev_stats.add(device="/device:GPU:0/stream:all").node_stats.add(node_name="b:MatMul")
    from parallax_runner.profile.timeline import timeline_of

    read = timeline_of(metadata, rank=0, step=1).ops
    assert [(op.name, op.type) for op in read] == [("a", "Add"), ("b", "MatMul")]


def test_a_file_that_is_no_trace_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "run_meta_1.pb"
    path.write_bytes(b"\xff\xff no protobuf")
    with pytest.raises(ValueError, match=r"run_meta_1\.pb is not RunMetadata"):
        read_timeline(path, rank=0, step=1)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="contains no ops"):
        read_timeline(path, rank=0, step=1)


@pytest.mark.parametrize(
    ("op_type", "name", "op_class"),
    [
        ("HorovodAllreduce", "a", OpClass.COMMUNICATION),
        ("HorovodGroupedAllreduce", "a", OpClass.COMMUNICATION),
        ("HorovodAllgather", "a", OpClass.COMMUNICATION),
        ("RecvTensor", "a", OpClass.COMMUNICATION),
        ("_HostRecv", "a", OpClass.COMMUNICATION),
        ("_Send", "a", OpClass.COMMUNICATION),
        ("SparseAccumulatorApplyGradient", "a", OpClass.COMMUNICATION),
        ("ResourceAccumulatorApplyGradient", "a", OpClass.COMMUNICATION),
        ("QueueEnqueueV2", "a", OpClass.COMMUNICATION),
        ("SparseAccumulatorTakeGradient", "a", OpClass.WAITING),
        ("AccumulatorTakeGradient", "a", OpClass.WAITING),
        ("QueueDequeueV2", "a", OpClass.WAITING),
        ("IteratorGetNext", "a", OpClass.WAITING),
        ("PyFunc", "allgather/embedding/mpi_Allgatherv", OpClass.COMMUNICATION),
        ("EagerPyFunc", "metric/PyFunc", OpClass.COMPUTE),
        ("MatMul", "allgatherv/MatMul", OpClass.COMPUTE),
        ("ResourceSparseApplyAdagrad", "a", OpClass.COMPUTE),
    ],
)
def test_classes_go_by_the_type_of_an_op(op_type: str, name: str, op_class: OpClass) -> None:
    (op,) = (
        timeline((WORKER_0, name, op_type, 0, 1)).ops
        if op_type != "RecvTensor"
        else timeline((WORKER_0, f"1 {name} {SERVER}", op_type, 0, 1)).ops
    )
    assert op.op_class is op_class
