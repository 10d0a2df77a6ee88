"""The order of examples: each once an epoch, wherever and in whatever pieces the stream is read."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_runner.data import stream
from parallax_runner.data.stream import ShuffledStream, epoch_order

sizes = st.integers(1, 60)
seeds = st.integers(0, 2**64)


@given(size=sizes, seed=seeds, workers=st.integers(1, 5), batch=st.integers(1, 9), epochs=st.integers(1, 3))
def test_ranks_together_see_each_example_once_an_epoch(size, seed, workers, batch, epochs):
    streams = [ShuffledStream(size=size, seed=seed) for _ in range(workers)]
    seen = []
    for step in range(-(-epochs * size // (workers * batch))):
        for rank in range(workers):
            seen += streams[rank].elements((step * workers + rank) * batch, batch).tolist()
    for epoch in range(epochs):
        assert sorted(seen[epoch * size : (epoch + 1) * size]) == list(range(size))


@given(size=sizes, seed=seeds, pieces=st.lists(st.integers(0, 40), min_size=1, max_size=8))
def test_pieces_do_not_change_the_stream(size, seed, pieces):
    whole = ShuffledStream(size=size, seed=seed).elements(0, sum(pieces))
    cut = ShuffledStream(size=size, seed=seed)
    starts = np.cumsum([0, *pieces[:-1]])
    parts = {int(start): cut.elements(int(start), count) for start, count in zip(starts, pieces, strict=True) if count}
    for start, part in reversed(parts.items()):  # a resumed run starts late
        np.testing.assert_array_equal(part, whole[start : start + len(part)])
        np.testing.assert_array_equal(cut.elements(start, len(part)), part)


def test_epochs_and_seeds_differ():
    orders = [epoch_order(size=50, seed=seed, epoch=epoch).tolist() for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert list(range(50)) not in orders


def test_order_is_the_same_on_every_machine_and_release():
    assert epoch_order(size=8, seed=1, epoch=0).tolist() == [2, 4, 7, 5, 0, 6, 3, 1]


def test_two_epochs_are_remembered(monkeypatch):
    drawn = []

    def recorded(*, size, seed, epoch):
        drawn.append(epoch)
        return epoch_order(size=size, seed=seed, epoch=epoch)

    monkeypatch.setattr(stream, "epoch_order", recorded)
    reader = ShuffledStream(size=10, seed=1)
    for start in (0, 5, 8, 3, 12, 9, 18, 25):
        reader.elements(start, 4)
    assert drawn == [0, 1, 2]


@settings(max_examples=20)
@given(start=st.integers(0, 10**12), count=st.integers(0, 5))
def test_any_position_can_be_read(start, count):
    elements = ShuffledStream(size=7, seed=3).elements(start, count)
    assert elements.shape == (count,) and elements.dtype == np.int64
    assert ((elements >= 0) & (elements < 7)).all()
