"""A tf.data.Dataset that several workers read: no example is lost or repeated, wherever a run goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.data.dataset import Feature
from parallax_runner.errors import DataError
from parallax_runner.graph.tf_data import fresh_copy
from parallax_runner.graph.tf_data.repeatable import why_not_repeatable
from parallax_runner.graph.tf_data.tf_dataset import TfDataset
from parallax_runner.train.feed import Feed

GENERATOR = tf.random.Generator.from_seed(1)
BATCH, EXAMPLES = 4, 22  # five whole batches a pass


def shuffled() -> Any:
    return tf.data.Dataset.range(EXAMPLES).shuffle(EXAMPLES, seed=5).map(lambda x: ({"id": x}, x * 2)).batch(BATCH)


def in_order() -> Any:
    return tf.data.Dataset.range(EXAMPLES).map(lambda x: ({"id": x}, x * 2)).batch(BATCH).prefetch(2)


def mapped_in_batches() -> Any:
    batches = tf.data.Dataset.range(EXAMPLES).shuffle(EXAMPLES, seed=5).batch(BATCH, drop_remainder=True)
    return batches.map(lambda x: ({"id": x}, x * 2))


def filtered() -> Any:
    return shuffled().unbatch().filter(lambda x, y: x["id"] < 21).batch(BATCH)


def endless() -> Any:
    return tf.data.Dataset.range(EXAMPLES).map(lambda x: ({"id": x}, x * 2)).shuffle(9, seed=1).repeat().batch(BATCH)


def mapped_after_batching() -> Any:
    """The last batch of a pass is a partial one, and its type does not tell."""
    return tf.data.Dataset.range(EXAMPLES).batch(BATCH).map(lambda x: ({"id": x}, x * 2)).shuffle(9, seed=3).prefetch(1)


def twice_a_pass() -> Any:
    """A pass shuffles twice; the second time it does so far behind the start of the pass."""
    numbers = tf.data.Dataset.range(EXAMPLES // 2).shuffle(EXAMPLES, seed=5).repeat(2)
    return numbers.map(lambda x: ({"id": x}, x * 2)).batch(BATCH)


def shuffles_what_is_left_over() -> Any:
    """The shuffle that a pass begins with also gives the two last examples, which no step reads."""
    ends = tf.data.Dataset.range(8).shuffle(8, seed=2)
    numbers = ends.concatenate(tf.data.Dataset.range(100, 112)).concatenate(ends.take(2))
    return numbers.map(lambda x: ({"id": x}, x * 2)).batch(BATCH)


def cached_in_an_order() -> Any:
    """The first pass decides the order of all, and is cached where it is read to its end."""
    return shuffled().unbatch().cache().batch(BATCH)


def files_in_an_order() -> Any:
    files = tf.data.Dataset.range(4).shuffle(4, seed=2)
    numbers = files.interleave(lambda file: tf.data.Dataset.range(6 * file, 6 * file + 6), num_parallel_calls=2)
    return numbers.take(EXAMPLES).map(lambda x: ({"id": x}, x * 2)).batch(BATCH)


PIPELINES = [
    *(shuffled, in_order, mapped_in_batches, mapped_after_batching, filtered, endless),
    *(twice_a_pass, shuffles_what_is_left_over, cached_in_an_order, files_in_an_order),
]


def whole(dataset: Any, **more: Any) -> TfDataset:
    return TfDataset.of(dataset, **more).with_whole_batches()


def plainly(dataset: Any, passes: int) -> list[list[int]]:
    """The ids of each whole batch, as one process sees them, pass after pass."""
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        return [x["id"].numpy().tolist() for x, _ in dataset.take(5 * passes)]
    return [x["id"].numpy().tolist() for _ in range(passes) for x, _ in dataset if len(x["id"]) == BATCH]


@pytest.fixture(autouse=True)
def no_global_seed() -> None:
    """Whatever tests before have set: a shuffle without a seed takes the global one."""
    tf.random.set_seed(None)


# First steps in the first, second and third pass, and numbers of ranks. The default tier has each with two pipelines.
PLACES = [(0, 4), (3, 2), (5, 1), (12, 2), (13, 4)]


def cases() -> list[Any]:
    """Returns every pipeline with every place."""
    return [
        pytest.param(make, *place, id=f"{'' if number % 5 == at else 'more-'}{make.__name__}-{place[0]}-{place[1]}")
        for number, make in enumerate(PIPELINES)
        for at, place in enumerate(PLACES)
    ]


@pytest.mark.parametrize(("make", "first", "ranks"), cases())
def test_ranks_together_read_what_one_process_reads(make: Callable[[], Any], first: int, ranks: int) -> None:
    expected = plainly(make(), passes=4)
    data = whole(make())
    feeds = [Feed(data, BATCH // ranks, rank, ranks) for rank in range(ranks)]
    for step in range(first, len(expected)):
        read = [feed.train_batches(step * BATCH)[0] for feed in feeds]
        assert {len(batch["id"]) for batch in read} == {BATCH // ranks}
        assert sorted(np.concatenate([batch["id"] for batch in read])) == sorted(expected[step]), step
        for batch in read:
            np.testing.assert_array_equal(batch["y"], 2 * batch["id"])


def test_replicas_of_a_worker_and_skipped_steps() -> None:
    expected = plainly(shuffled(), passes=2)
    feed = Feed(whole(shuffled()), BATCH // 2, rank=0, size=1, replicas=2)
    for step in (1, 4, 8):
        read = feed.train_batches(step * BATCH)
        assert len(read) == 2 and sorted(np.concatenate([batch["id"] for batch in read])) == sorted(expected[step])


@pytest.mark.parametrize("in_batches", [False, True])
def test_the_first_examples_are_read_without_filling_a_shuffle(in_batches: bool) -> None:
    read = []

    def noted(number: Any) -> Any:
        read.append(int(number))
        return number

    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False  # otherwise a thread reads ahead
    numbers = tf.data.Dataset.range(1000).with_options(options)
    examples = numbers.map(lambda x: tf.py_function(noted, [x], tf.int64))
    examples = examples.map(lambda x: {"id": tf.ensure_shape(x, [])}).shuffle(1000, seed=1)
    dataset = examples.batch(BATCH, drop_remainder=True)
    data = TfDataset.of(dataset.map(lambda x: x) if in_batches else dataset, exact=False)
    assert data.train_batch(1, 2)["id"].tolist() == [1, 2]
    assert len(read) < 20


def test_what_was_read_before_changes_nothing() -> None:
    """A script may look at its data, and a worker reads the shares of all ranks to verify a run."""
    expected, dataset = plainly(shuffled(), passes=3), shuffled()
    list(dataset)
    data = TfDataset.of(dataset, dataset).with_whole_batches()
    feed = Feed(data, BATCH, rank=0, size=1)
    for step in (2, 9, 14, 3, 0):  # it also goes back
        assert feed.train_batches(step * BATCH)[0]["id"].tolist() == expected[step], step
        assert feed.any_batch["id"].tolist() == list(range(BATCH))
    parts = [Feed(data, BATCH // 2, rank, 2) for rank in range(2)]
    for step in (0, 7):
        read = [part.train_batches(step * BATCH)[0]["id"] for part in parts]
        assert sorted(np.concatenate(read)) == sorted(expected[step])
    assert len(list(dataset)) == 6


@pytest.mark.parametrize(("before", "first"), [(0, 0), (5, 5), (6, 10), (10, 10)])
@pytest.mark.parametrize("make", [shuffled, cached_in_an_order, mapped_in_batches])
def test_a_later_call_goes_on_with_the_orders_of_later_passes(make: Callable[[], Any], before: int, first: int) -> None:
    """Five steps are a pass; a pass that has begun is over."""
    expected = plainly(make(), passes=4)
    feed = Feed(whole(make()).after(before), BATCH, rank=0, size=1)
    for step in (0, 3, 7, 1):
        assert feed.train_batches(step * BATCH)[0]["id"].tolist() == expected[first + step], step


def test_a_later_call_goes_on_in_endless_data() -> None:
    """Shuffled data that never ends: nothing waits for the end of a pass."""
    expected = plainly(endless(), passes=4)
    feed = Feed(TfDataset.of(endless()).after(3).after(4), BATCH, rank=0, size=1)
    for step in (0, 2, 9, 1):
        assert feed.train_batches(step * BATCH)[0]["id"].tolist() == expected[7 + step], step


@pytest.mark.parametrize("cached", [False, True])
def test_endless_data_that_is_not_shuffled_begins_again_in_a_later_call(cached: bool) -> None:
    """As in Keras, which makes a new iterator in each call."""
    examples = tf.data.Dataset.range(EXAMPLES).map(lambda x: ({"id": x}, x * 2))
    data = TfDataset.of((examples.cache() if cached else examples).repeat().batch(BATCH))
    assert data.is_endless
    feed = Feed(data.after(3), BATCH, rank=0, size=1)
    assert feed.train_batches(BATCH)[0]["id"].tolist() == [4, 5, 6, 7]


def test_a_filler_does_not_move_on() -> None:
    feed = Feed(TfDataset.of(in_order()), BATCH // 2, rank=1, size=2)
    assert feed.train_batches(0)[0]["id"].tolist() == [1, 3]
    assert len(feed.any_batch["id"]) == BATCH // 2
    assert feed.train_batches(BATCH)[0]["id"].tolist() == [5, 7]


def test_a_batch_that_parts_do_not_divide_is_refused() -> None:
    with pytest.raises(DataError, match=r"4 examples cannot be divided into 3 equal parts.*a batch of 3 or 6"):
        whole(in_order()).share(0, ranks=3, replicas=1)


def test_a_cache_is_filled_in_the_first_pass() -> None:
    """Although no step reads the last, partial batch."""
    reads: list[int] = []

    def seen(number: Any) -> Any:
        reads.append(int(number))
        return number

    numbers = tf.data.Dataset.range(6).map(lambda x: tf.ensure_shape(tf.py_function(seen, [x], tf.int64), [])).cache()
    feed = Feed(TfDataset.of(numbers.batch(4), exact=False), 4, 0, 1)
    for step in range(3):
        feed.train_batches(4 * step)
    assert sorted(reads) == list(range(6))


def test_large_arrays() -> None:
    """They are no part of what a copy is made from."""
    numbers = np.arange(30_000, dtype=np.int64)
    words = np.array(["a", "b", "c"] * 10_000)
    dataset = tf.data.Dataset.from_tensor_slices((numbers, words)).map(lambda x, w: ({"id": x}, tf.strings.length(w)))
    data = TfDataset.of(dataset.shuffle(30_000, seed=1).batch(10_000))
    parts = [Feed(data, 5000, rank, 2) for rank in range(2)]
    for step in (0, 2, 3):
        read = [part.train_batches(10_000 * step)[0] for part in parts]
        assert all((batch["y"] == 1).all() for batch in read)
        assert len(set(np.concatenate([batch["id"] for batch in read]))) == 10_000
    assert sum(node.ByteSize() for node in data.train.copies.graph_def.node) < 100_000


def test_arrays_that_no_graph_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_copy, "LIMIT", 799)
    with pytest.raises(DataError, match=r"the data contains arrays of 800 bytes.*pass the arrays"):
        TfDataset.of(tf.data.Dataset.from_tensor_slices(np.arange(100)).shuffle(3, seed=1).batch(10))


def test_beside_a_graph_and_in_another_thread() -> None:
    """As a worker reads: its session's graph is the default one, and a thread prepares batches."""
    feed, found = Feed(TfDataset.of(in_order(), in_order()), BATCH, 0, 1), []
    with tf.Graph().as_default() as graph:
        graph.finalize()
        found.append(feed.train_batches(0)[0]["id"])
        found += [batch["id"] for batch in feed.validation_batches(in_parts=True)]
    thread = threading.Thread(target=lambda: found.append(feed.train_batches(BATCH)[0]["id"]))
    thread.start()
    thread.join()
    assert len(found) == 8 and found[-1].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(("make", "examples"), [(filtered, 21), (mapped_after_batching, 22)])
def test_ranks_validate_on_each_batch_once(make: Callable[[], Any], examples: int) -> None:
    plain = [x["id"].numpy().tolist() for x, _ in make()]
    assert len([id for ids in plain for id in ids]) == examples
    for rank in range(2):
        feed = Feed(TfDataset.of(in_order(), make()), BATCH // 2, rank, 2)
        assert [batch["id"].tolist() for batch in feed.validation_batches(in_parts=False)] == plain[rank::2]


@pytest.mark.parametrize("examples", [3, 10])
def test_a_validation_omits_what_its_batches_drop(examples: int) -> None:
    held_back = tf.data.Dataset.range(examples).map(lambda id: ({"id": id}, id)).batch(4, drop_remainder=True)
    data = TfDataset.of(in_order(), held_back)
    used = examples // 4 * 4
    assert (data.validation_size, data.validates_at_least(1)) == (used, used > 0)
    for in_parts in (False, True):
        read = [batch["id"].tolist() for batch in Feed(data, 4, 0, 1).validation_batches(in_parts=in_parts)]
        assert read == [x["id"].numpy().tolist() for x, _ in held_back]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("make", [in_order, mapped_in_batches, filtered])
def test_ranks_validate_on_each_example_once_in_batches_of_one_size(make: Callable[[], Any], size: int) -> None:
    """Only the last batch is smaller."""
    read = []
    for rank in range(2):  # each in a process of its own: it sees the first order of a shuffle
        data = TfDataset.of(in_order().unbatch().batch(2 * size), make())
        examples = data.validation_size
        read += [batch["id"] for batch in Feed(data, size, rank, 2).validation_batches(in_parts=True)]
    sizes = sorted(len(ids) for ids in read)
    whole, rest = divmod(examples, size)
    assert sizes == [rest] * (rest > 0) + [size] * whole
    assert sorted(np.concatenate(read)) == sorted(np.concatenate([x["id"].numpy() for x, _ in make()]))


def test_ranks_agree_on_the_examples_that_a_validation_draws() -> None:
    """Each validation draws other examples."""

    def drawn() -> Any:
        return in_order().unbatch().shuffle(EXAMPLES, seed=5).take(12).batch(5)

    plain = drawn()
    expected = [sorted(x["id"].numpy() for x, _ in plain.unbatch()) for _ in range(2)]
    feeds = [Feed(TfDataset.of(in_order(), drawn()), BATCH // 2, rank, 2) for rank in range(2)]
    passes = []
    for _ in range(2):
        read = [batch["id"] for feed in feeds for batch in feed.validation_batches(in_parts=False)]
        passes.append(sorted(np.concatenate(read)))
    assert passes == expected and passes[0] != passes[1]


def test_what_is_known_of_it() -> None:
    data = TfDataset.of(shuffled(), in_order()).with_whole_batches()
    assert (data.global_batch, data.pass_steps, data.train_size, data.validation_size) == (4, 5, 20, 22)
    assert data.features["id"].shape == () and data.features["id"].dtype == "int64"
    assert data.notes == ("2 examples are omitted from each pass over the data, because they do not fill a batch",)
    assert whole(filtered()).pass_steps == whole(mapped_after_batching()).pass_steps == 5
    assert TfDataset.of(in_order(), mapped_after_batching()).validation_size == 22
    assert TfDataset.of(endless()).is_endless
    assert TfDataset.of(endless().unbatch().filter(lambda x, y: x["id"] > 1).batch(4)).is_endless


def test_data_that_ends_early_is_an_error() -> None:
    feed = Feed(TfDataset.of(in_order(), pass_steps=7), BATCH, 0, 1)
    with pytest.raises(DataError, match="ended before batch 7 of 7 in pass 1"):
        feed.train_batches(6 * BATCH)


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        (lambda: tf.data.Dataset.range(9).shuffle(9).batch(3), "a shuffle has no seed"),
        (
            lambda: tf.data.Dataset.from_generator(
                lambda: iter([1, 2]), output_signature=tf.TensorSpec([], tf.int32)
            ).batch(1),
            "a Python generator",
        ),
        (
            lambda: (
                tf.data.Dataset.range(9)
                .map(lambda x: tf.ensure_shape(tf.numpy_function(np.negative, [x], tf.int64), []))
                .batch(3)
            ),
            "a Python function",
        ),
        (
            lambda: tf.data.Dataset.range(9).map(lambda x: x + tf.random.uniform([], 0, 4, tf.int64)).batch(3),
            "a map draws random numbers",
        ),
        (
            lambda: tf.data.Dataset.range(3).flat_map(lambda x: tf.data.Dataset.range(3).shuffle(3)).batch(3),
            "a shuffle has no seed",
        ),
        (
            lambda: tf.data.Dataset.sample_from_datasets([tf.data.Dataset.range(3)] * 2).batch(3),
            "a random choice of datasets has no seed",
        ),
        (
            lambda: tf.data.Dataset.range(9).map(lambda x: x + GENERATOR.uniform([], 0, 4, tf.int64)).batch(3),
            "a variable",
        ),
        (
            lambda: tf.data.Dataset.range(9).map(lambda x: x, num_parallel_calls=2, deterministic=False).batch(3),
            "deterministic=False",
        ),
    ],
)
def test_an_order_that_nobody_can_repeat_is_refused(dataset: Callable[[], Any], told: str) -> None:
    with pytest.raises(DataError, match=told):
        TfDataset.of(dataset())
    assert TfDataset.of(dataset(), exact=False).global_batch
    validated = f"validation_data: its order cannot be repeated: .*{told}"
    with pytest.raises(DataError, match=validated):
        TfDataset.of(in_order(), dataset())
    # Workers would validate some examples twice and others never; only what Python or a variable decides is trusted.
    if any(word in told for word in ("seed", "deterministic")):
        with pytest.raises(DataError, match=validated):
            TfDataset.of(in_order(), dataset(), exact=False)
    else:
        like = tf.data.Dataset.from_tensors(tf.zeros([], dataset().element_spec.dtype)).batch(1)
        assert TfDataset.of(like, dataset(), exact=False).validation_size


def test_a_global_seed_is_a_seed() -> None:
    tf.random.set_seed(4)
    try:
        assert why_not_repeatable(tf.data.Dataset.range(9).shuffle(9).batch(3)) is None
    finally:
        tf.random.set_seed(None)


DENSE = tf.lookup.experimental.DenseHashTable("string", "int64", -1, "", "$")


def words() -> Any:
    return tf.data.Dataset.from_tensor_slices(["a", "ü", "", "b"]).batch(2)


def looked_up_in(table: Any) -> Any:
    return words().map(lambda word: tf.ensure_shape(table.lookup(word), [None]))


def test_strings_are_a_feature() -> None:
    dataset = TfDataset.of(words().map(lambda word: {"word": word, "ids": tf.strings.length(word)}))
    assert dataset.features["word"] == Feature((), "string")
    share = dataset.share(1, 2, 1)
    assert [share.train_batches(start)[0]["word"].tolist() for start in (0, 2)] == [["ü".encode()], [b"b"]]


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        (lambda: tf.data.Dataset.range(9), r"single examples, not batches: add \.batch\(N\)"),
        (lambda: looked_up_in(tf.lookup.experimental.MutableHashTable("string", "int64", -1)), "a mutable lookup"),
        (lambda: looked_up_in(DENSE), "its content would differ between the ranks"),
        (lambda: words().map(tf.keras.layers.StringLookup()), r"has no content yet: call adapt\(\)"),
        (lambda: tf.data.Dataset.range(2).batch(4, drop_remainder=True), "less than one batch of 4"),
        (lambda: tf.data.Dataset.range(0).batch(4), "the data has no examples"),
        (lambda: tf.data.Dataset.range(9).window(3), "DatasetSpec: only dense, ragged and sparse tensors"),
    ],
)
def test_what_cannot_be_cut_is_refused(dataset: Callable[[], Any], told: str) -> None:
    with pytest.raises(DataError, match=told):
        TfDataset.of(dataset())
