"""The batch size of a replica follows from the batches of a tf.data.Dataset, so it is set once."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from parallax_runner.config.frozen import from_plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.batch_size import with_batch_size
from parallax_runner.errors import ConfigError
from parallax_runner.graph.tf_data.tf_dataset import TfDataset
from tests.single.train.test_loop import dataset as without_batches

BATCHES = TfDataset.of(tf.data.Dataset.range(24).map(lambda x: {"x": x}).batch(12))


def config(
    comm: str = "hybrid", workers: int = 2, replicas_per_worker: int = 1, *, sync: bool = True, **data: Any
) -> RunConfig:
    cluster = {"workers": workers, "replicas_per_worker": replicas_per_worker}
    wanted = {"data": {"_target_": "my.data", **data}, "comm": {"name": comm, "sync": sync}, "cluster": cluster}
    return from_plain(wanted)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 6),
        ({"batch_size": None}, 6),
        ({"workers": 3}, 4),
        ({"replicas_per_worker": 2}, 3),
        ({"comm": "local", "workers": 5}, 12),
        ({"batch_size": 5}, 5),  # a wrong one is refused with the plan
    ],
)
def test_the_batch_is_divided_among_all_replicas(settings: dict[str, Any], expected: int) -> None:
    assert with_batch_size(config(**settings), BATCHES).data["batch_size"] == expected


def test_a_batch_that_is_not_divided_equally() -> None:
    sizes = with_batch_size(config(workers=5), BATCHES).data
    assert (sizes["batch_size"], sizes["global_batch"]) == (3, 12)
    assert "global_batch" not in with_batch_size(config("ps", workers=3, sync=False), BATCHES).data


def test_what_cannot_be_derived_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"12 examples cannot be divided into 5 equal parts.* choose a batch of 10"):
        with_batch_size(config("ps", workers=5, sync=False), BATCHES)
    with pytest.raises(ConfigError, match=r"data\.batch_size=null: expected an integer, at least 1.*my\.data returned"):
        with_batch_size(config(), without_batches(validation=0))
