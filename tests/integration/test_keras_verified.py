"""The Keras models of `models/` are proven in every mode, by the commands that a user types."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.integration.runs import launch

# The first table of dlrm_keras has fewer rows than ids, so its ids are hashed. Batches contain ids more than once.
SIZES = {
    "dlrm_keras": (
        *("data.dense_features=3", "data.cardinalities=[500,40,3]", "model.max_rows=100"),
        *("model.embedding_size=4", "model.bottom_units=[8]", "model.top_units=[8]"),
    ),
    "two_tower": ("data.queries=60", "data.items=40", "model.embedding_size=4", "model.units=[8,4]"),
}
COMMON = ("data.examples=1000", "data.validation_examples=0", "data.batch_size=16", "train.steps=12", "tracking=off")
# The route of the tables.
ROUTES = {"hybrid": "ps", "sharded": "alltoall", "mpi": "allgather", "ps": "ps"}


@pytest.mark.parametrize(("model", "comm"), list(itertools.product(SIZES, ROUTES)))
def test_verify_proves_it(model: str, comm: str, tmp_path: Path) -> None:
    arguments = (f"experiment={model}", f"comm={comm}", "action=verify", *SIZES[model], *COMMON)
    run = launch(*arguments, cwd=tmp_path).expect_success()
    assert "verified: after every 10 of 12 steps, every variable matches the result on one device" in run.stderr
    assert run.summary["untouched_verified"] and run.summary["untouched_max_difference"] < 1e-4
    assert run.summary["verified"] and (run.summary["comm"], run.summary["workers"]) == (comm, 2)
    tables = [variable for variable in run.plan["variables"] if variable["name"].endswith("/embeddings")]
    names = [variable["name"] for variable in tables]
    assert run.summary["differ_unmerged"] == names  # of Adagrad, without clipping
    assert f"stock TensorFlow and Keras differ in {len(names)} variables if a batch repeats an id" in run.stderr
    assert all(run.stderr.count(f"«{name}»") == 1 for name in names)  # in the plan's note
    assert [variable["route"] for variable in tables] == [ROUTES[comm]] * (3 if model == "dlrm_keras" else 2)
