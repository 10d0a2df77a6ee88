import threading
from collections.abc import Sequence

from parallax_runner.track import metric_buffer
from parallax_runner.track.metric_buffer import MetricBuffer, Point


def point(step: int) -> Point:
    return Point("train/loss", 0.5, 1000, step)


class Store:
    def __init__(self) -> None:
        self.batches: list[list[Point]] = []
        self.up = True
        self.called = threading.Event()

    def send(self, points: Sequence[Point]) -> bool:
        if self.up:
            self.batches.append(list(points))
        self.called.set()
        return self.up


def test_points_wait_until_the_buffer_is_closed() -> None:
    store = Store()
    buffer = MetricBuffer(store.send, every_secs=60.0)
    for step in range(2500):
        buffer.add([point(step)])
    assert store.batches == []
    assert buffer.close() == 0
    assert [len(batch) for batch in store.batches] == [1000, 1000, 500]
    assert [one.step for batch in store.batches for one in batch] == list(range(2500))


def test_points_are_sent_while_it_is_open() -> None:
    store = Store()
    buffer = MetricBuffer(store.send, every_secs=0.01)
    buffer.add([point(1)])
    assert store.called.wait(5.0)
    buffer.close()
    assert store.batches == [[point(1)]]


def test_points_are_kept_in_order_while_the_store_is_down() -> None:
    store = Store()
    store.up = False
    buffer = MetricBuffer(store.send, every_secs=0.01)
    buffer.add([point(1)])
    assert store.called.wait(5.0)
    buffer.add([point(2)])
    store.up = True
    assert buffer.close() == 0
    assert [one for batch in store.batches for one in batch] == [point(1), point(2)]


def test_what_could_not_be_sent_is_counted_and_bounded(monkeypatch) -> None:
    monkeypatch.setattr(metric_buffer, "MAX_KEPT", 10)
    store = Store()
    store.up = False
    buffer = MetricBuffer(store.send, every_secs=60.0)
    buffer.add([point(step) for step in range(15)])
    assert buffer.close() == 10
