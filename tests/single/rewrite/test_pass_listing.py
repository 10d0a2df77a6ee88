"""Which ops each pass adds to a rank's step and takes out of it, as files that people review when they change."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.rewrite.every_route.integrity import check
from parallax_runner.rewrite.passes import all_passes
from parallax_runner.rewrite.replica import start_replica
from tests.single.small_models import assert_golden, captured, clip, planned, planned_auto, routes_model

# Arithmetic on shapes, and what no pass is about.
PLUMBING = frozenset(
    {"Cast", "Const", "Pack", "Reshape", "Shape", "Size", "StridedSlice", "Unpack", "ConcatV2", "Range"}
)


ADDED = (
    "merge/",
    "allreduce/",
    "densified/",
    "allgather/",
    "shards/",
    "split/",
    "accumulate/",
    "from_servers/",
    "fifo_queue",
    "skip_nonfinite/",
    "lookup_0/",
    "push_0/",
)


def describe(op: tf.Operation) -> str:
    """Scope, type, what it is shared by and where it is; no name with a number that TensorFlow counted up."""
    name = op.name.rpartition("/")[0] if op.name.startswith(ADDED) else re.sub(r"^(\w+?)_\d+$", r"\1", op.name)
    shared = op.node_def.attr["shared_name"].s.decode() if "shared_name" in op.node_def.attr else ""
    shared = re.sub("/[0-9a-f]{16}/", "/", shared)  # The plan's fingerprint.
    fields = (name or "(top)", op.type, f"«{shared}»" if shared else "", op.device)
    return "  ".join(field for field in fields if field)


def listing(comm: str, rank: int) -> str:
    if comm == "auto":
        single = captured(routes_model, process=clip)
        plan = planned_auto(single)
    else:
        single = captured(process=clip)
        plan = planned(single, comm, partitions=2)
    lines: list[str] = []
    before: Counter[str] = Counter()
    with tf.Graph().as_default() as graph:
        rewrite = start_replica(single, plan, graph, replica=rank, seed=1, skip_nonfinite=True)
        for run_pass in all_passes():
            run_pass(rewrite)
            check(rewrite, after=run_pass.name)
            step = edit.ancestors([rewrite.train_op, *rewrite.step_ops])
            now = Counter(describe(op) for op in step if op.type not in PLUMBING and not is_backward(op))
            if not before:  # What the model has is not what the pass made.
                lines += [
                    "the step without its backward pass",
                    *sorted(f"    {d}" for d in now if not d.startswith(ADDED)),
                ]
                before = Counter({d: count for d, count in now.items() if not d.startswith(ADDED)})
            changes = [
                (sign, d, n) for sign, some in (("-", before - now), ("+", now - before)) for d, n in some.items()
            ]
            lines += [run_pass.name]
            lines += [f"  {sign} {d}" + (f"  ×{n}" if n > 1 else "") for sign, d, n in sorted(changes)]
            before = now
    return "\n".join(lines) + "\n"


def is_backward(op: tf.Operation) -> bool:
    return op.name.startswith(("gradients/", "features/"))


@pytest.mark.parametrize(
    ("comm", "rank"),
    [("local", 0), ("mpi", 0), ("ps", 0), ("hybrid", 0), ("hybrid", 1), ("sharded", 0), ("auto", 0)],
)
def test_listing(comm: str, rank: int) -> None:
    assert_golden(f"rewrite_{comm}_rank_{rank}.txt", listing(comm, rank))


@pytest.mark.parametrize("comm", ["mpi", "sharded", "auto"])
def test_ranks_without_servers_are_rewritten_alike(comm: str) -> None:
    assert listing(comm, rank=1) == listing(comm, rank=0)
