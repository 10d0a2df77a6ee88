"""The second day by warm start equals plain Keras on one device, which carries everything over by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.data.table.source import load
from parallax_runner.data.table.vocabularies import vocabulary_in
from tests.integration.runs import Run, launch
from tests.shared import shared

Values = dict[str, np.ndarray]

COLUMNS: dict[str, Any] = {
    "user": {"category": {"min_count": 2, "oov": 2}},
    "item": "category",
    "price": "number",
    "liked": "label",
}
IN_YAML = "{user: {category: {min_count: 2, oov: 2}}, item: category, price: number, liked: label}"
TABLES = {"embedding_user/embeddings": "user", "embedding_item/embeddings": "item"}
WORKERS, BATCH, BATCHES, EMBEDDING_SIZE, UNITS, SEED = 2, 8, 10, 4, [6], 1
STEPS = {"day1": 12, "day2": 7}
RATES = {"day1": 0.05, "day2": 0.02}
SLOTS = {"adagrad": ("accumulator",), "adam": ("momentum", "velocity")}
MODEL = (
    *("data=table", "model=tabular", f"data.columns={IN_YAML}", f"data.batch_size={BATCH}", "tracking=off"),
    *(f"model.units={UNITS}", f"model.embedding_size={EMBEDDING_SIZE}", f"train.seed={SEED}", "train.log_every=1"),
    "data.shuffle=off",
)


def write_day(path: Path, users: range, items: range) -> None:
    """Writes batches in which no id repeats, because Keras updates repeated ids in another way (docs/repeated-ids.md).

    The last user of a batch occurs once, so it is not in the vocabulary.
    """
    draws, size, lines = np.random.default_rng(len(users)), WORKERS * BATCH, []
    for batch in range(BATCHES):
        for place in range(size):
            user = users[(batch * (size - 1) + place) % len(users)] if place < size - 1 else f"once {batch}"
            item = items[(batch * size + place) % len(items)]
            lines.append(f"user {user},item {item},{draws.normal():.3f},{draws.integers(0, 2)}")
    path.write_text("\n".join(["user,item,price,liked", *lines]) + "\n")


def run_day(folder: Path, cwd: Path, day: str, name: str, *lines: str) -> Run:
    common = (*MODEL, f"data.train={folder / f'{day}.csv'}", f"data.cache_dir={folder / 'cache'}")
    return launch(*common, *lines, cwd=cwd, name=name).expect_success()


@pytest.fixture(scope="session")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of two days, and with `initial_DAY`: a run that has changed no weight."""

    def make(folder: Path) -> Path:
        write_day(folder / "day1.csv", range(30), range(20))
        write_day(folder / "day2.csv", range(12, 50), range(9, 28))
        for day in STEPS:
            unchanged = ("comm=local", "train.steps=1", "model.learning_rate=0.0")
            run_day(folder, folder, day, f"initial_{day}", *unchanged)
        return folder

    return shared(tmp_path_factory, "two_days", make)


def values(run_dir: Path, step: int) -> Values:
    reader = tf.train.load_checkpoint(str(run_dir / "ckpt" / f"model.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


class ByHand:
    """Plain Keras on one device, on the examples of a day."""

    def __init__(self, days: Path, day: str, optimizer: str) -> None:
        import keras

        from models.tabular import make_model

        self.day, self.optimizer = day, optimizer
        self.run_dir = days / f"initial_{day}"
        cache = str(days / "cache")
        self.data: Any = load(
            train=str(days / f"{day}.csv"), columns=COLUMNS, shuffle="off", seed=SEED, cache_dir=cache
        )
        keras.backend.clear_session(free_memory=False)
        self.model = make_model(
            table=self.data.table_features,
            task="binary",
            embedding_size=EMBEDDING_SIZE,
            units=UNITS,
            optimizer=optimizer,
        )
        self.model.optimizer.build(self.model.trainable_variables)
        self.model.optimizer.learning_rate.assign(RATES[day])
        initial = values(self.run_dir, 1)
        for variable in self.model.trainable_variables:
            variable.assign(initial[variable.path])

    def variables(self) -> dict[str, Any]:
        """Returns the weights, their slots as `WEIGHT/SLOT`, and the number of updates."""
        found = {variable.path: variable for variable in self.model.trainable_variables}
        of_optimizer = {variable.path.split("/")[-1]: variable for variable in self.model.optimizer.variables}
        for name in list(found):
            for slot in SLOTS[self.optimizer]:
                found[f"{name}/{slot}"] = of_optimizer[f"{name.replace('/', '_')}_{slot}"]
        return found | {"updates": self.model.optimizer.iterations}

    def values(self) -> Values:
        return {name: variable.numpy() for name, variable in self.variables().items()}

    def take(self, before: ByHand, *, slots: bool) -> None:
        """Carries over weights, and slots, from the day before; rows of tables by their strings."""
        carried = before.values()
        for name, variable in self.variables().items():
            is_weight = name.endswith(("embeddings", "kernel", "bias"))
            if not is_weight and not slots:
                continue
            table = next((table for table in TABLES if name.startswith(table)), None)
            value = carried[name]
            if table is not None:
                value = self._by_string(TABLES[table], value, variable.numpy(), before)
            variable.assign(value)

    def _by_string(self, column: str, old: np.ndarray, fresh: np.ndarray, before: ByHand) -> np.ndarray:
        theirs, own = (vocabulary_in(one.run_dir, column) for one in (before, self))
        assert theirs is not None and own is not None and theirs.first == own.first
        place_of = {word: theirs.first + place for place, word in enumerate(theirs.words)}
        result = fresh.copy()
        result[: own.first] = old[: own.first]
        for place, word in enumerate(own.words):
            if word in place_of:
                result[own.first + place] = old[place_of[word]]
        return result

    def train(self) -> list[float]:
        """Returns the loss of each step."""
        size, losses = WORKERS * BATCH, []
        for step in range(STEPS[self.day]):
            batch = self.data.train_batch(step * size, size)
            labels = batch.pop("liked")
            losses.append(float(self.model.train_on_batch(batch, labels[:, None], return_dict=True)["loss"]))
            self.model.reset_metrics()
        return losses


def renamed(found: Mapping[str, np.ndarray], optimizer: str, names: Mapping[str, Any]) -> Values:
    """Returns the values of a checkpoint under the names of `ByHand`."""
    result = {}
    for name in names:
        weight, _, slot = name.rpartition("/")
        is_slot = slot in SLOTS[optimizer]
        key = f"{optimizer}/{weight.replace('/', '_')}_{slot}" if is_slot else name
        result[name] = found[f"{optimizer}/iteration" if name == "updates" else key]
    return result


@pytest.mark.parametrize(
    ("optimizer", "cases"),
    [
        ("adagrad", {"sharded": True, "hybrid": False}),
        ("adam", {"hybrid": True, "sharded": False}),
    ],
)
def test_the_second_day_equals_plain_keras_by_hand(
    optimizer: str, cases: dict[str, bool], days: Path, tmp_path: Path
) -> None:
    def run(day: str, mode: str, *lines: str) -> Run:
        settings = (f"model.optimizer={optimizer}", f"model.learning_rate={RATES[day]}", f"train.steps={STEPS[day]}")
        sizes = (f"comm={mode}", f"cluster.workers={WORKERS}")
        return run_day(days, tmp_path, day, f"{day}_{mode}", *settings, *sizes, *lines)

    first = run("day1", "sharded")
    rows = ",".join(f"{table}:{column}" for table, column in TABLES.items())
    for mode, slots in cases.items():
        warm = (f"ckpt.warm_start={first.run_dir}", f"ckpt.take.rows=[{rows}]", f"ckpt.take.slots={slots}".lower())
        second = run("day2", mode, *warm)
        before = ByHand(days, "day1", optimizer)
        before.train()
        compare(values(first.run_dir, STEPS["day1"]), before)
        by_hand = ByHand(days, "day2", optimizer)
        by_hand.take(before, slots=slots)
        losses = by_hand.train()
        compare(values(second.run_dir, STEPS["day2"]), by_hand)
        told = [loss for _, loss in sorted(second.losses().items())]
        np.testing.assert_allclose(told, losses, rtol=1e-3)
        assert second.summary["loss_last"] == pytest.approx(losses[-1], rel=1e-5)


def compare(checkpoint: Values, by_hand: ByHand) -> None:
    expected = by_hand.values()
    found = renamed(checkpoint, by_hand.optimizer, expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
