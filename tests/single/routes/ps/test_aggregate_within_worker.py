"""What the replicas of one worker push as one gradient."""

from __future__ import annotations

import dataclasses

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.passes import rewrite_for_rank
from tests.parallel.cases import Case


def test_bfloat16_of_the_replicas_is_added_up_as_float32() -> None:
    """In bfloat16, 256 + 1 + 1 + 1 is 256 again."""
    case = Case(comm="ps", model="bfloat16", optimizer="momentum")
    single = case.single()
    plan = dataclasses.replace(case.plan(single), replicas_per_worker=2)
    graph = rewrite_for_rank(single, plan, rank=0, seed=1).graph
    within = [op for op in graph.get_operations() if op.name.startswith("within_worker/") and op.type == "AddN"]
    assert within
    assert {op.outputs[0].dtype for op in within} == {tf.float32}
