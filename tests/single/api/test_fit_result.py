"""The files in which a call of `fit` leaves its result: what a callback puts into the logs, full disks, damage."""

from __future__ import annotations

import collections
import datetime
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.api import earlier_calls, fit, fit_result
from parallax_runner.api.earlier_calls import EarlierCall, GivenData
from parallax_runner.errors import StorageError

RUN = {"first": 0, "epochs": 2, "epoch_steps": 5, "steps": 10}
ITSELF: list[Any] = []
ITSELF.append(ITSELF)
ODD_LOGS: dict[str, Any] = {
    "an array": np.zeros((2, 2)),
    "an array of objects": np.array([object(), {}], dtype=object),
    "a tensor": tf.ones([2]),
    "a ragged tensor": tf.ragged.constant([[1], [2, 3]]),
    "a sparse tensor": tf.sparse.from_dense([1, 0]),
    "a variable": keras.Variable(1.0),
    "a NumPy scalar": np.float32(1),
    "a date": np.datetime64("2026-01-01"),
    "a complex number": 1 + 2j,
    "bytes": b"\xff",
    "half a surrogate": "\ud800",
    "a set": {1, 2},
    "keys that are tuples": {(0, 1): 2.0, None: 1},
    "nested": collections.OrderedDict(a=[np.ones(2), {"b": (1, np.int64(2))}]),
    "a class": dict,
    "a moment": datetime.datetime(2026, 1, 1),
    "itself": ITSELF,
    "no number": float("nan"),
    "many digits": 10**400,
}


def model() -> keras.Model:
    made = keras.Sequential([keras.Input([50]), keras.layers.Dense(50, name="dense")], name="model")
    made.compile(keras.optimizers.SGD(name="sgd"), "mse")
    return made


def history(**logs: Any) -> keras.callbacks.History:
    made = keras.callbacks.History()
    made.history, made.epoch, made.params = {"loss": [1.0], **logs}, [0], {"epochs": 2}
    return made


@contextmanager
def full_disk(room_bytes: int) -> Iterator[None]:
    """A file may have so many bytes and no more: for what is written, a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("kind", ODD_LOGS)
def test_whatever_a_callback_puts_into_the_logs(tmp_path: Path, kind: str) -> None:
    stem = fit_result.stem_of(tmp_path, 1)
    assert fit_result.leave(stem, model(), history(odd=[ODD_LOGS[kind]]), [], RUN) is None
    assert fit_result.run_of(stem, model()) == RUN
    found, steps = fit_result.take_over(stem, model())
    assert (steps, found.history["loss"]) == (10, [1.0])
    assert len(found.history["odd"]) == 1


def test_arrays_are_lists_and_numbers(tmp_path: Path) -> None:
    stem = fit_result.stem_of(tmp_path, 1)
    fit_result.leave(stem, model(), history(confusion=[np.eye(2)], rate=[np.float32(0.5)]), [], RUN)
    found, _ = fit_result.take_over(stem, model())
    assert found.history == {"loss": [1.0], "confusion": [[[1.0, 0.0], [0.0, 1.0]]], "rate": [0.5]}


@pytest.mark.parametrize("room_bytes", [0, 100, 5000])
def test_a_full_disk_is_a_note(tmp_path: Path, room_bytes: int, capsys: pytest.CaptureFixture[str]) -> None:
    stem = fit_result.stem_of(tmp_path, 1)
    with full_disk(room_bytes):
        reason = fit_result.leave(stem, model(), history(), [], RUN)
    assert reason == "File too large"
    assert f"the result of fit was not written to {stem}.npz and .json: File too large" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert fit_result.run_of(stem, model()) is None


def test_a_full_disk_after_the_first_file_leaves_neither(tmp_path: Path) -> None:
    stem = fit_result.stem_of(tmp_path, 1)
    with full_disk(30_000):
        assert fit_result.leave(stem, model(), history(long=["x" * 40_000]), [], RUN) == "File too large"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_is_a_note(tmp_path: Path) -> None:
    stem = fit_result.stem_of(tmp_path / "gone", 1)
    assert fit_result.leave(stem, model(), history(), [], RUN) == "No such file or directory"


def test_a_later_call_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers would fail one after the other, in the middle of the script."""
    lost = EarlierCall(tmp_path / "fit-1", GivenData.of(None, None), 10, 1, 0, "No space left on device")
    monkeypatch.setattr(earlier_calls, "finished", [lost])
    x = np.zeros([8, 50], np.float32)
    with pytest.raises(StorageError, match=r"need the result of an earlier call, .*fit-1\.npz, .* No space left"):
        fit.fit(model(), x, x, workers=2, batch_size=4)


def damaged(facts: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Texts in place of the JSON file."""
    text = json.dumps(facts).encode()
    yield from ((f"cut at {size}", text[:size]) for size in range(0, len(text), 7))
    yield "UTF-16", text.decode().encode("utf-16")
    yield "nested deeply", b"[" * 100_000
    for name in facts:
        yield f"no {name}", json.dumps({key: value for key, value in facts.items() if key != name}).encode()
        for value in (None, 1, float("nan"), "text", [[]]):
            if type(value) is not type(facts[name]):
                yield f"{name} is {value!r}", json.dumps(facts | {name: value}).encode()


def test_a_damaged_result_is_none(tmp_path: Path) -> None:
    stem = fit_result.stem_of(tmp_path, 1)
    fit_result.leave(stem, model(), history(), [], RUN)
    facts, values = tmp_path / "fit-1.json", tmp_path / "fit-1.npz"
    sound_facts, sound_values = facts.read_bytes(), values.read_bytes()
    for what, content in damaged(json.loads(sound_facts)):
        facts.write_bytes(content)
        assert fit_result.run_of(stem, model()) is None, what
    facts.write_bytes(sound_facts)
    for size in range(0, len(sound_values) - 1, 997):
        values.write_bytes(sound_values[:size])
        assert fit_result.run_of(stem, model()) is None, f"cut at {size}"
    for place in range(0, len(sound_values), 997):
        values.write_bytes(sound_values[:place] + b"\xff\x00\xff\x00" + sound_values[place + 4 :])
        fit_result.run_of(stem, model())  # a changed number cannot be found, but nothing may raise
    values.write_bytes(sound_values)
    assert fit_result.run_of(stem, model()) == RUN
