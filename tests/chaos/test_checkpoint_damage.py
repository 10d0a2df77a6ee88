"""A folder of real checkpoints, damaged in every way we know, one at a time.

What was written before is used, or the run is refused; never a traceback, never a damaged value.

Prints how many damages of each kind there were, and what came of them (`pytest -s`); docs/reliability.md has the table.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.best import fault_of_best, note_validated
from parallax_runner.checkpoints.checkpoint_files import prefix_of, step_of
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps, check_fits
from parallax_runner.checkpoints.publish import prepare
from parallax_runner.checkpoints.saver import CheckpointSaver
from parallax_runner.checkpoints.start import find_start
from parallax_runner.errors import CheckpointError
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train import sessions
from tests.single.small_models import BATCH, ROWS, WIDTH, Features, captured, lookup_model, planned

STEPS = (10, 20, 30)
NEWEST = STEPS[-1]
FILES = tuple(f"model.ckpt-{NEWEST}.{ending}" for ending in ("json", "index", "data-00000-of-00001"))
FLIPS, CUTS = 25, 8  # of each file of the newest checkpoint, at seeded places
RESTORES = 40  # of the damages after which a run can start, so many are followed by a real restore
PATIENCE_SECS = 20  # nothing waits for what never comes, such as the writer of a FIFO
LEAST_DAMAGES = 150
RESTORED = "of these restored into a graph"

Act = Callable[[Path], object]


@dataclass(frozen=True)
class Damage:
    """What is done to a folder. It `spares` the newest checkpoint, or all: then a run starts from it."""

    kind: str
    name: str
    act: Act
    spares: bool = False
    ruins_all: bool = False


class Hung(BaseException):
    """Nobody may catch it."""


@contextmanager
def patience() -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> NoReturn:
        raise Hung

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE_SECS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# Damages.


def flip(name: str, place: float, bit: int) -> Act:
    def act(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[int(place * len(content))] ^= 1 << bit
        (folder / name).write_bytes(content)

    return act


def cut(name: str, share: float) -> Act:
    return lambda folder: os.truncate(folder / name, int(share * (folder / name).stat().st_size))


def delete(folder: Path, name: str) -> Path:
    (folder / name).unlink(missing_ok=True)
    return folder / name


def link(path: Path, target: str | Path) -> None:
    path.symlink_to(target)


IN_ITS_PLACE: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "empty file": lambda path: path.write_bytes(b""),
    "empty folder": lambda path: path.mkdir(),
    "full folder": lambda path: (path / "full").mkdir(parents=True),
    "link to itself": lambda path: link(path, path.name),
    "link to nothing": lambda path: link(path, "gone"),
    "link to a folder": lambda path: link(path, "/"),
    "link to the older one": lambda path: link(path, path.name.replace(str(NEWEST), "20")),
    "FIFO": os.mkfifo,
    "/dev/zero": lambda path: link(path, "/dev/zero"),
    "/dev/full": lambda path: link(path, "/dev/full"),
    "device": lambda path: os.mknod(path, 0o20666, os.makedev(1, 5)),  # what /dev/zero is
    "sparse file of a terabyte": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
    "copy of the older one": lambda path: shutil.copy(path.with_name(path.name.replace(str(NEWEST), "20")), path),
    "other text": lambda path: path.write_text("other text\n"),
    "no text": lambda path: path.write_bytes(bytes(range(256))),
    "deep JSON": lambda path: path.write_text("[" * 100_000),
    "deep object": lambda path: path.write_text('{"format": 3, "a": ' * 900 + "1" + "}" * 900),
    "huge number": lambda path: path.write_text('{"format": ' + "9" * 10_000 + "}"),
}


def change_sidecar(change: Callable[[dict[str, object]], object], *, pretty: bool = True) -> Act:
    def act(folder: Path) -> None:
        path = folder / FILES[0]
        fields = json.loads(path.read_text())
        change(fields)
        path.write_text(json.dumps(fields, indent=1 if pretty else None) + "\n")

    return act


SIDECARS: dict[str, Act] = {
    "later format": change_sidecar(lambda fields: fields.update(format=99)),
    "format of another kind": change_sidecar(lambda fields: fields.update(format=[3])),
    "without format": change_sidecar(lambda fields: fields.pop("format")),
    "without checksum": change_sidecar(lambda fields: fields.pop("sha256")),
    "without files": change_sidecar(lambda fields: fields.pop("files")),
    "no files": change_sidecar(lambda fields: fields.update(files={})),
    "files of another kind": change_sidecar(lambda fields: fields.update(files=7)),
    "another step": change_sidecar(lambda fields: fields.update(step=31)),
    "another position": change_sidecar(lambda fields: fields.update(examples=0)),
    "another number": change_sidecar(lambda fields: fields.update(write_number=1)),
    "another order": change_sidecar(lambda fields: fields.update(seed=fields.pop("seed"))),
    "in one line": change_sidecar(lambda fields: None, pretty=False),
}

BEST: dict[str, Callable[[Path], object]] = {
    **{name: make for name, make in IN_ITS_PLACE.items() if "older" not in name and name != "nothing"},
    "text for a step": lambda path: path.write_text('{"validated_step": "x", "step": null, "validation_loss": null}'),
    "loss that is not finite": lambda path: path.write_text('{"validated_step": 9, "step": 9, "validation_loss": NaN}'),
    "unknown field": lambda path: path.write_text('{"validated_step": 9, "other": 1}'),
}

LEFTOVERS = [f"{start}-{end}" for start in (".partial", ".forgotten") for end in ("20", "30", "40", "abc", "")]
LEFT: dict[str, Callable[[Path], object]] = {
    "file": lambda path: path.write_text("left"),
    **{
        name: IN_ITS_PLACE[name]
        for name in ("empty folder", "full folder", "link to itself", "link to a folder", "FIFO")
    },
}


def half_written(folder: Path) -> None:
    """Killed while TensorFlow wrote."""
    (folder / ".partial-40").mkdir()
    (folder / ".partial-40" / "model.ckpt.index").write_bytes(b"half")


def half_moved(folder: Path, *, ruin: bool) -> None:
    """Killed before the first move of a replacement for the newest; with `ruin` its values are damaged since."""
    partial = folder / f".partial-{NEWEST}"
    partial.mkdir()
    for name in FILES:
        shutil.copy(folder / name, partial / name.replace(f"-{NEWEST}", "", 1))
    if ruin:
        flip("model.ckpt.data-00000-of-00001", 0.5, 3)(partial)


def renamed(folder: Path) -> None:
    for name in FILES:
        (folder / name).rename(folder / name.replace(str(NEWEST), "99"))


def ruin_all(act: Callable[[Path], object], ending: str) -> Act:
    def ruin(folder: Path) -> None:
        for step in STEPS:
            act(delete(folder, f"model.ckpt-{step}.{ending}"))

    return ruin


def damages() -> list[Damage]:
    draw = random.Random(20)
    found = [
        Damage("a bit flipped", f"{name}, {number}", flip(name, draw.random(), draw.randrange(8)))
        for name in FILES
        for number in range(FLIPS)
    ]
    found += [
        Damage("cut off", f"{name}, {number}", cut(name, draw.random())) for name in FILES for number in range(CUTS)
    ]
    found += [
        Damage("a file replaced", f"{name}: {what}", lambda folder, name=name, make=make: make(delete(folder, name)))
        for name in FILES
        for what, make in IN_ITS_PLACE.items()
    ]
    found += [Damage("a sidecar changed", name, act) for name, act in SIDECARS.items()]
    found += [
        Damage("best.json replaced", what, lambda folder, make=make: make(delete(folder, "best.json")), spares=True)
        for what, make in BEST.items()
    ]
    # What a killed run leaves is removed; `.forgotten-30` without a sidecar in it means that nothing has been deleted.
    found += [
        Damage("leftovers", f"{name}: {what}", lambda folder, name=name, make=make: make(folder / name), spares=True)
        for name in LEFTOVERS
        for what, make in LEFT.items()
    ]
    found += [
        Damage("leftovers", "half written", half_written, spares=True),
        Damage("leftovers", "half moved", lambda folder: half_moved(folder, ruin=False), spares=True),
        Damage("leftovers", "half moved and damaged", lambda folder: half_moved(folder, ruin=True), spares=True),
        Damage("names", "renamed to another step", renamed),
        Damage("names", "strangers", lambda folder: (folder / "model.ckpt-x.json").mkdir(), spares=True),
        Damage("names", "TensorFlow's own list", lambda folder: make_folder(folder / "checkpoint"), spares=True),
    ]
    found += [
        Damage("all checkpoints damaged", f"{ending}: {what}", ruin_all(IN_ITS_PLACE[what], ending), ruins_all=True)
        for ending in ("json", "index", "data-00000-of-00001")
        for what in ("nothing", "empty file", "full folder", "link to itself", "FIFO", "deep JSON")
    ]
    return found


def make_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


DAMAGES = damages()


# What comes of them.


@dataclass(frozen=True)
class Sound:
    """A folder with three checkpoints and a best one, and the values of all variables in each."""

    folder: Path
    single: SingleDeviceGraph
    values: dict[int, dict[str, np.ndarray]]


def model(features: Features) -> tf.Tensor:
    """[BATCH]: lookups in a table, and in one whose vocabulary grows."""
    from parallax_runner.layers import GrowingEmbedding  # imports Keras

    growing = GrowingEmbedding(1, 1024, overflow="shared", seed=1, name="growing", dtype="float64")
    return lookup_model(features) + tf.reduce_sum(growing(features["ids"], training=True), axis=1)


def batch(step: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(step)
    return {"ids": draw.integers(0, ROWS, BATCH), "x": draw.normal(size=(BATCH, WIDTH)), "y": draw.normal(size=BATCH)}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    folder, single, values = tmp_path_factory.mktemp("sound"), captured(model), {}
    for step in STEPS:
        distributed = rewrite_for_rank(single, planned(single, "local"), rank=0, seed=step)
        ops = CheckpointOps(distributed)
        with tf.Session(graph=distributed.graph) as session:
            sessions.initialize(session, distributed, ops, None)
            saver = CheckpointSaver(
                ops=ops,
                folder=folder,
                save_steps=None,
                save_secs=None,
                keep=len(STEPS),
                seed=1,
                fingerprint="f",
                run_id=lambda: None,
            )
            saver.start(step - 1)
            (features,) = distributed.features
            session.run(distributed.train_op, {features[name]: array for name, array in batch(step).items()})
            saver.finish(session, step=step, examples=8 * step)
            values[step] = ops.snapshot(session)
            note_validated(folder, step, float(step))
    for name in ("table", "growing/keys", "growing/rows"):
        assert len({one[name].tobytes() for one in values.values()}) == len(STEPS)
    return Sound(folder, single, values)


@pytest.fixture(scope="module")
def counts() -> Iterator[Counter[tuple[str, str]]]:
    found: Counter[tuple[str, str]] = Counter()
    yield found
    print("\n\n| damage | tried | came of it |\n|---|---|---|")
    for kind in sorted(dict.fromkeys(kind for kind, _ in found), key=lambda kind: kind == RESTORED):
        outcomes = {outcome: count for (one, outcome), count in found.items() if one == kind}
        told = ", ".join(f"{outcome}: {count}" for outcome, count in outcomes.items())
        print(f"| {kind} | {sum(outcomes.values())} | {told} |")


@pytest.fixture(scope="module")
def to_restore() -> set[int]:
    """Places in `DAMAGES`."""
    return set(random.Random(21).sample(range(len(DAMAGES)), RESTORES))


def expect_values_of(sound: Sound, prefix: Path) -> None:
    """A rank that starts there has what was written in that step."""
    check_fits(prefix, sound.single.variables)
    distributed = rewrite_for_rank(sound.single, planned(sound.single, "local"), rank=0, seed=7)
    ops = CheckpointOps(distributed)
    with tf.Session(graph=distributed.graph) as session:
        sessions.initialize(session, distributed, ops, str(prefix))
        found, expected = ops.snapshot(session), sound.values[step_of(prefix)]
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def copy_of(sound: Sound, folder: Path) -> Path:
    shutil.copytree(sound.folder, folder)
    return folder


@pytest.mark.parametrize(
    "number", range(len(DAMAGES)), ids=[re.sub(r"[^\w.:, -]", "_", f"{one.kind}: {one.name}") for one in DAMAGES]
)
def test_damage(
    number: int, sound: Sound, tmp_path: Path, counts: Counter[tuple[str, str]], to_restore: set[int]
) -> None:
    damage, folder = DAMAGES[number], copy_of(sound, tmp_path / "ckpt")
    damage.act(folder)
    with patience():
        notes = prepare(folder)
        try:
            found = find_start("auto", folder)
        except CheckpointError as error:
            assert damage.ruins_all, error
            assert "\n" not in str(error)
            assert all(f"model.ckpt-{step}" in str(error) for step in STEPS)
            counts[damage.kind, "refused"] += 1
            return
        notes = (*notes, *found.notes, *filter(None, [fault_of_best(folder)]))
    assert not damage.ruins_all
    assert found.prefix == prefix_of(folder, NEWEST if damage.spares else 20), notes
    assert all("\n" not in note for note in notes)
    if not damage.spares:
        assert any(f"using {found.prefix} instead" in note for note in notes)
    if damage.kind == "best.json replaced":
        assert notes
    counts[damage.kind, "nothing lost" if damage.spares else "the one before is used"] += 1
    if number in to_restore:
        expect_values_of(sound, found.prefix)
        counts[RESTORED, "the values that were written"] += 1
    with patience():  # and the run can go on: the same step is written again
        note_validated(folder, NEWEST, 1.0)
        assert fault_of_best(folder) is None


def test_there_are_enough_of_them() -> None:
    assert len(DAMAGES) >= LEAST_DAMAGES
    assert len({(one.kind, one.name) for one in DAMAGES}) == len(DAMAGES)


@pytest.mark.parametrize("number", random.Random(22).sample(range(len(DAMAGES)), 12))
def test_a_run_writes_over_what_is_damaged(number: int, sound: Sound, tmp_path: Path) -> None:
    """Whatever stands in the way, the step that was lost is saved again, and is then the newest."""
    damage, folder = DAMAGES[number], copy_of(sound, tmp_path / "ckpt")
    damage.act(folder)
    distributed = rewrite_for_rank(sound.single, planned(sound.single, "local"), rank=0, seed=7)
    ops = CheckpointOps(distributed)
    with patience(), tf.Session(graph=distributed.graph) as session:
        sessions.initialize(session, distributed, ops, None)
        saver = CheckpointSaver(
            ops=ops,
            folder=folder,
            save_steps=None,
            save_secs=None,
            keep=2,
            seed=1,
            fingerprint="f",
            run_id=lambda: None,
        )
        saver.start(20)
        saver.finish(session, step=NEWEST, examples=8 * NEWEST)
        expected = ops.snapshot(session)["table"]
    found = find_start(str(prefix_of(folder, NEWEST)), tmp_path)
    assert found.prefix is not None
    np.testing.assert_array_equal(tf.train.load_checkpoint(str(found.prefix)).get_tensor("table"), expected)
