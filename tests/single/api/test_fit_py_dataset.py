"""A `keras.utils.PyDataset` as training and validation data: replicas share the batches that Keras trains on."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from parallax_runner.api.fit_data import dataset_of
from parallax_runner.api.fit_py_dataset import MadeElements, NamedBatches, SlicedElements
from parallax_runner.api.fit_validation import InBatches, Schedule, ends_with_validation
from parallax_runner.data.batch_structure import BatchStructure
from parallax_runner.data.dataset import Feature, is_uneven, with_whole_batches
from parallax_runner.data.python_batches import PythonBatches
from parallax_runner.data.shares import SHARE
from parallax_runner.errors import ConfigError, DataError
from parallax_runner.shipment.data_files import why_data_stays
from parallax_runner.train.feed import Feed
from tests.single.api.test_fit import GIVEN

SIZES = (4, 4, 3, 1)


class Batches(keras.utils.PyDataset):
    """Numbers in batches of SIZES. Batch i has rows of length i + 2. `calls` are Keras' calls between passes."""

    def __init__(self, *, weighted: bool = False, as_list: bool = False, first: int = 0) -> None:
        super().__init__()
        self.weighted, self.as_list, self.first = weighted, as_list, first
        self.calls = list[str]()

    def __len__(self) -> int:
        return len(SIZES)

    def __getitem__(self, index: int) -> Any:
        start = self.first + sum(SIZES[:index])
        y = np.arange(start, start + SIZES[index])
        parts = ({"words": np.repeat(y[:, None], index + 2, axis=1)}, y, *([y * 0.5] if self.weighted else []))
        return list(parts) if self.as_list else parts

    def on_epoch_begin(self) -> None:
        self.calls.append("begin")

    def on_epoch_end(self) -> None:
        self.calls.append("end")


class Endless(Batches):
    """Repeats the batches of one size."""

    @property
    def num_batches(self) -> None:
        return None

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index % 2)


def made(train: Any, validation: Any = None, **more: Any) -> Any:
    return dataset_of(train, None, **{**GIVEN, "validation_data": validation, "shuffle": False, **more})


def numbers(batches: list[dict[str, np.ndarray]]) -> list[int]:
    """The examples that replicas train on in a step, whose shares are checked."""
    examples = [len(batch["y"]) if batch[SHARE] else 0 for batch in batches]
    for batch, count in zip(batches, examples, strict=True):
        assert len(batch["y"]) and batch[SHARE] == pytest.approx(len(batches) * count / sum(examples))
        assert (batch["words"] == batch["y"][:, None]).all()
    return sorted(int(one) for batch, count in zip(batches, examples, strict=True) for one in batch["y"][:count])


@pytest.mark.parametrize(("ranks", "replicas", "first"), [(1, 1, 0), (2, 1, 3), (3, 2, 0), (5, 1, 6)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_replicas_together_train_on_each_batch_once_a_pass(
    ranks: int, replicas: int, first: int, *, shuffle: bool
) -> None:
    source = Batches()
    data = made(source, shuffle=shuffle).with_seed(3)
    assert (data.pass_steps, data.train_size, data.global_batch) == (4, 16, 4)
    feeds = [Feed(data, 1, rank, ranks, replicas) for rank in range(ranks)]
    assert feeds[0].is_uneven and feeds[0].global_batch == 4
    read = [numbers([one for feed in feeds for one in feed.train_batches(step * 4)]) for step in range(first, 12)]
    for number, step in zip(read, range(first, 12), strict=True):
        if not shuffle:
            assert number == source[step % 4][1].tolist()
    for start in range(-first % 4, len(read) - 3, 4):
        assert sorted(one for step in read[start : start + 4] for one in step) == list(range(12))
    orders = [read[start : start + 4] for start in range(-first % 4, len(read) - 3, 4)]
    assert not shuffle or len(orders) == 1 or orders[0] != orders[1]
    assert source.calls == ["end", "begin"] * 3  # although several ranks read here


@pytest.mark.parametrize(("kind", "steps_per_epoch"), [(Batches, None), (Batches, 2), (Endless, 3)])
def test_the_calls_between_epochs_are_those_of_keras(kind: type[Batches], steps_per_epoch: int | None) -> None:
    class Fixed(kind):  # type: ignore[misc, valid-type]
        def __getitem__(self, index: int) -> Any:
            y = super().__getitem__(index)[1]
            return y[:, None], y[:, None]

    plain, ours = Fixed(), Fixed()
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    epochs = list[int]()
    for more in (3, 1, 2):
        model.fit(plain, epochs=more, shuffle=False, verbose=0, steps_per_epoch=steps_per_epoch)
        # The workers of each call run the script again, with data that has not been read.
        ours.calls.clear()
        data = made(ours, steps_per_epoch=steps_per_epoch)
        steps = steps_per_epoch or len(SIZES)
        feed = Feed(data.after(sum(epochs) * steps, epochs), 4, 0, 1)
        for step in range(more * steps):
            feed.train_batches(4 * step)
        epochs.append(more)
        assert [*ours.calls, "end"] == plain.calls  # nobody reads after the last epoch


@pytest.mark.parametrize("frequency", [1, 2, [1, 4]])
def test_the_calls_between_validations_are_those_of_keras(frequency: int | list[int]) -> None:
    """Workers can start at any step, and two workers read. The batches of a validation depend on the calls before."""

    class Fixed(Batches):
        def __getitem__(self, index: int) -> Any:
            y = super().__getitem__(index)[1] + 100 * len(self.calls)
            return y[:, None], y[:, None]

    plain = Fixed()
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    schedule, read = Schedule(1, frequency), dict[int, list[str]]()
    for epochs in range(2, 6):
        plain.calls.clear()
        if ends_with_validation(epochs, frequency):
            options = {"initial_epoch": 1, "validation_data": plain, "validation_freq": frequency, "verbose": 0}
            model.fit(np.zeros([4, 1]), np.zeros([4, 1]), epochs=epochs, **options)
            read[epochs - 1] = plain.calls[:-1]
    last = max(read)
    for first in range(1, last + 1):
        source = Fixed()
        data = made(Fixed(), source).after(0, (), lambda step: schedule.before(-(-step // len(SIZES))))
        feeds = [Feed(data, 2, rank, 2) for rank in range(2)]
        for epoch in range(first, last + 1):
            batches = [list(feed.validation_batches(in_parts=False, step=epoch * len(SIZES))) for feed in feeds]
            if epoch in read:
                assert source.calls == read[epoch]
                assert batches[0][0]["y"][0, 0] == 100 * len(read[epoch])


def test_a_later_call_goes_on_with_the_next_pass() -> None:
    data = made(Batches(), shuffle=True)
    expected, found = Feed(data, 4, 0, 1), Feed(data.after(3), 4, 0, 1)
    for step in range(4):
        np.testing.assert_array_equal(
            found.train_batches(4 * step)[0]["y"], expected.train_batches(4 * (step + 4))[0]["y"]
        )


def test_what_is_known_of_it() -> None:
    data = made(Batches(as_list=True))
    assert data.features == {"words": Feature((None,), "int64"), "y": Feature((), "int64")}
    assert is_uneven(data, 1)
    assert "PyDataset, which calls Python code" in str(why_data_stays(data))
    assert Feed(data, 2, 0, 2).any_batch["y"].tolist() == [0, 1]
    with pytest.raises(DataError, match="needs batches of one size"):
        with_whole_batches(data)


@pytest.mark.parametrize("kind", ["a PyDataset", "arrays", "a dataset"])
@pytest.mark.parametrize("steps", [None, 2])
def test_validation_data_beside_it(kind: str, steps: int | None) -> None:
    y = np.arange(12)
    arrays = ({"words": np.repeat(y[:, None], 3, axis=1)}, y)
    given: Any = Batches() if kind == "a PyDataset" else arrays
    if kind == "a dataset":
        given = tf.data.Dataset.from_tensor_slices(arrays).batch(4)
    batch_size = 4 if kind == "arrays" else None
    data = made(Batches(), given, validation_steps=steps, validation_batch_size=batch_size)
    sizes = SIZES if kind == "a PyDataset" else (4, 4, 4)
    expected = list(range(12 if steps is None else 8))
    assert data.validation_size == len(expected) and data.validates_at_least(len(expected))
    assert not data.validates_at_least(len(expected) + 1)
    feeds = [Feed(data, 2, rank, 2) for rank in range(2)]
    read = [[batch["y"] for batch in feed.validation_batches(in_parts=False)] for feed in feeds]
    assert sorted(np.concatenate([*read[0], *read[1]])) == expected
    assert [list(map(len, own)) for own in read] == [list(sizes[:steps][rank::2]) for rank in range(2)]


@pytest.mark.parametrize("weighted", ["training", "validation"])
def test_weights_in_one_part_only(weighted: str) -> None:
    data = made(Batches(weighted=weighted == "training"), Batches(weighted=weighted == "validation"))
    feed = Feed(data, 4, 0, 1)
    parts = {"training": feed.train_batches(4)[0], "validation": list(feed.validation_batches(in_parts=False))[1]}
    for name, batch in parts.items():
        assert batch["sample_weight"].tolist() == ([2.0, 2.5, 3.0, 3.5] if name == weighted else [1.0] * 4)


def test_sizes_that_differ_between_training_and_validation_are_unknown() -> None:
    """Weights for each word, only in the validation data, whose batches have other lengths."""
    y = np.ones([8, 5])

    class OfOneLength(Batches):
        def __getitem__(self, index: int) -> Any:
            return {"words": y[:4, :2]}, y[:4, :2]

    class Weighted(Batches):
        def __getitem__(self, index: int) -> Any:
            part = y[:4, : index + 3]
            return {"words": part}, part, part * 2

    data = made(OfOneLength(), Weighted())
    assert {name: feature.shape for name, feature in data.features.items()} == dict.fromkeys(data.features, (None,))
    feed = Feed(data, 4, 0, 1)
    assert (feed.train_batches(0)[0]["sample_weight"] == 1).all()
    read = list(feed.validation_batches(in_parts=False))
    assert [batch["sample_weight"].shape for batch in read] == [(4, 3), (4, 4), (4, 5), (4, 5)]
    assert all((batch["sample_weight"] == 2).all() for batch in read)


def test_weights_of_classes() -> None:
    (batch,) = Feed(made(Batches(), class_weight={1: 3.0}), 4, 0, 1).train_batches(0)
    assert batch["sample_weight"].tolist() == [1, 3, 1, 1]


@pytest.mark.parametrize("train", ["arrays", "a dataset"])
def test_it_validates_other_data(train: str) -> None:
    rows = np.arange(8)
    given: Any = (rows, rows)

    class OfOneShape(Batches):
        def __getitem__(self, index: int) -> Any:
            y = super().__getitem__(index)[1]
            return y, y

    if train == "a dataset":
        given = (tf.data.Dataset.from_tensor_slices(given).batch(4), None)
    batch_size = 4 if train == "arrays" else None
    data = dataset_of(*given, **{**GIVEN, "validation_data": OfOneShape(), "batch_size": batch_size})
    read = [batch["y"] for batch in Feed(data, 4, 0, 1).validation_batches(in_parts=False)]
    assert np.concatenate(read).tolist() == list(range(12)) and tuple(map(len, read)) == SIZES
    assert why_data_stays(data) is None


def test_arrays_beside_batches_of_several_shapes_are_refused() -> None:
    words = np.zeros([8, 2]), np.zeros(8)
    with pytest.raises(ConfigError, match=r"validation_data \(fit\): .* differs between batches.*pass x as"):
        dataset_of({"words": words[0]}, words[1], **{**GIVEN, "validation_data": Batches(), "batch_size": 4})


def test_batches_that_never_end() -> None:
    data: PythonBatches = made(Endless(), steps_per_epoch=3)
    feed = Feed(data.after(5), 4, 0, 1)
    assert [int(feed.train_batches(4 * step)[0]["y"][0]) for step in range(5)] == [0, 4, 0, 4, 0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"x": Endless()}, "the data never ends; set the number of steps per epoch"),
        ({"validation_data": Endless()}, r"validation_data \(fit\): it never ends: set validation_steps"),
        ({"y": np.ones(4)}, r"y \(fit\): a keras.utils.PyDataset already contains it"),
        ({"batch_size": 4}, r"batch_size \(fit\): a keras.utils.PyDataset already contains it"),
        ({"validation_split": 0.5}, r"validation_split=0.5 \(fit\): this argument needs arrays"),
        ({"x": Batches(weighted=True), "class_weight": {0: 2.0}}, r"class_weight \(fit\): x already has weights"),
        ({"validation_data": (np.ones([4, 2]), np.ones(4))}, "validation_data has the features"),
    ],
)
def test_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises((ConfigError, DataError), match=told):
        dataset_of(**{**GIVEN, "x": Batches(), "y": None, **arguments})


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ((np.ones([3, 2]), np.ones(2)), "batch 2 of x: expected arrays of the same length, found 3 for «words», 2 for"),
        ((np.ones([0, 2]), np.ones(0)), "batch 2 of x: it has no examples: leave this batch out"),
        (
            (np.ones([3, 2]), np.ones(3), np.ones(3)),
            "batch 2 of x: it has the features .*weight'], but the",
        ),
        (
            (np.ones([3, 2]), *[np.ones(3)] * 3),
            r"x \(fit\): a batch of .* is a tuple of length 4; expected \(x,\)",
        ),
        ((scipy.sparse.eye(3), np.ones(3)), r"x \(fit\): batch 2 of the .*PyDataset has a sparse matrix: make dense"),
    ],
)
def test_a_batch_that_replicas_cannot_share_is_refused(batch: tuple[Any, ...], told: str) -> None:
    class Torn(Batches):
        def __getitem__(self, index: int) -> Any:
            return ({"words": batch[0]}, *batch[1:]) if index == 2 else super().__getitem__(index)

    with pytest.raises((ConfigError, DataError), match=told):
        Feed(made(Torn()), 4, 0, 1).train_batches(8)


def test_each_kind_of_elements_is_made_into_named_batches() -> None:
    structure = BatchStructure.of((0, 0))
    x, y = np.arange(10.0), np.arange(10)
    batches = NamedBatches(SlicedElements(InBatches.of_size([x, y], 4), "float32"), structure)
    assert batches.count == 3 and batches.read(2)["x"].tolist() == [8, 9]
    assert {name: array.dtype.name for name, array in batches.read(0).items()} == {"x": "float32", "y": "int64"}
    batches.like = {**batches.read(0), "sample_weight": np.zeros([4, 2], "float16")}
    added = batches.read(2)["sample_weight"]
    assert added.tolist() == [[1, 1], [1, 1]] and added.dtype == "float16"
    made_ones = MadeElements(Batches(), "x", {1: 3.0}, most=2)
    assert made_ones.count == 2 and made_ones.element(0)[2].tolist() == [1, 3, 1, 1]
