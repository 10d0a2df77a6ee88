"""comm=local merges sparse gradients at the boundary as all modes do, and is otherwise the user's graph."""

from __future__ import annotations

import itertools

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.graph.seeds import derive_seeds
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.verify.compare import compare
from parallax_runner.verify.reference import Reference
from tests.parallel.cases import OPTIMIZERS, SEED, STEPS, Case

CASES = [
    Case(comm="local", ranks=1, optimizer=optimizer, clip=clip)
    for optimizer, clip in itertools.product(OPTIMIZERS, (False, True))
] + [
    Case(comm="local", ranks=1, optimizer="adam", clip=True, model=model)
    for model in ("accumulated", "accumulated_branch")
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_local_equals_the_reference(case: Case) -> None:
    single = case.single()
    initializers = [variable.initializer for variable in single.variables]

    def seeds(graph_def: tf.GraphDef, rank: int) -> tf.GraphDef:
        return derive_seeds(graph_def, seed=SEED, rank=rank, first_step=0, initializers=initializers)

    distributed = rewrite_for_rank(single, case.plan(single), rank=0, seed=SEED)
    checkpoints = CheckpointOps(distributed)
    with tf.Session(graph=distributed.graph) as session:
        session.run(distributed.initialize)
        initial = checkpoints.snapshot(session)
        for step in range(STEPS):
            feed = {distributed.features[0][name]: array for name, array in case.batch(step, 0).items()}
            session.run(distributed.train_op, feed)
        final = checkpoints.snapshot(session)
    with Reference(single, ranks=1, average_sparse=True, seeds=seeds) as reference:
        reference.initialize()
        reference.load(initial)
        for step in range(STEPS):
            reference.step([case.batch(step, 0)])
        comparison = compare(final, reference.values(), tolerance=1e-8)
    assert comparison.ok, comparison.first_difference
