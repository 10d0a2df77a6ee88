"""A worker that makes the data again gets the number of batches from the driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from parallax_runner.config.frozen import from_plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset, is_uneven, with_whole_batches
from parallax_runner.data.shares import SHARE
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.tf_data.tf_dataset import TfDataset
from parallax_runner.shipment.received import Received
from parallax_runner.shipment.shipment import Shipment
from parallax_runner.shipment.shipment_folder import Contents, folder_of, make_empty
from tests.single.small_models import captured

BATCH = 4


class Maker:
    """Makes data that a Python generator yields. `read` contains the examples that were read."""

    def __init__(self, count: int) -> None:
        self.count, self.read = count, list[int]()

    def load_dataset(self, config: RunConfig) -> Dataset:
        def examples() -> Iterator[int]:
            for number in range(self.count):
                self.read.append(number)
                yield number

        spec = tf.TensorSpec([], tf.int64)
        numbers: Any = tf.data.Dataset.from_generator(examples, output_signature=spec)
        return TfDataset.of(numbers.map(lambda x: {"x": x}).batch(BATCH), exact=False)

    def build_graph(self, config: RunConfig, dataset: Dataset) -> SingleDeviceGraph:
        raise NotImplementedError


def test_workers_do_not_count_and_agree_with_the_driver(tmp_path: Path) -> None:
    config = from_plain({})
    make_empty(folder_of(tmp_path))
    Shipment.of(captured(), Maker(200).load_dataset(config)).write(tmp_path)
    contents = Contents.load(tmp_path)
    assert contents is not None and contents.data is not None and contents.pass_steps == 50
    for count in (200, 231):  # with data.resume=approximate, the generators can differ
        maker = Maker(count)
        data = Received.of(tmp_path, maker).load_dataset(config)
        assert data.train_size == 200 and not maker.read


def test_workers_agree_with_the_driver_on_partial_batches(tmp_path: Path) -> None:
    config = from_plain({})
    made = Maker(202).load_dataset(config)
    for whole_only, size in ((False, 204), (True, 200)):
        make_empty(folder_of(tmp_path))
        Shipment.of(captured(), with_whole_batches(made) if whole_only else made).write(tmp_path)
        maker = Maker(202)
        data: Any = Received.of(tmp_path, maker).load_dataset(config)
        assert data.train_size == size and not maker.read
        assert is_uneven(data, 2) != whole_only
        shares = [data.share(rank, 2, 1) for rank in range(2)]
        last = [share.train_batches(size - BATCH)[0] for share in shares]
        assert [batch["x"].tolist() for batch in last] == ([[196, 198], [197, 199]] if whole_only else [[200], [201]])
        assert all((SHARE in batch) != whole_only for batch in last)
