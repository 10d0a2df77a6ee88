"""Checkpoints on disk, without TensorFlow: published whole or not at all, kept and found."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.checkpoints import publish as checkpoint_folder
from parallax_runner.checkpoints.checkpoint_files import (
    Sidecar,
    damage,
    list_checkpoints,
    prefix_of,
    read_sidecar,
    sidecar_path,
)
from parallax_runner.checkpoints.publish import begin, flush, forget_old, publish, tidy
from parallax_runner.errors import CheckpointError

SUFFIXES = ("data-00000-of-00002", "data-00001-of-00002", "index", "json")


def sidecar(step: int) -> Sidecar:
    return Sidecar(step=step, examples=step * 8, seed=1, fingerprint="f", tracker_run_id="run")


def partial(folder: Path, step: int, content: str = "content") -> Path:
    """Files as TensorFlow writes them, not yet published; returns their prefix."""
    prefix = begin(folder, step)
    for suffix in SUFFIXES[:3]:
        prefix.with_name(f"{prefix.name}.{suffix}").write_text(f"{content} {suffix}")
    flush(prefix)
    return prefix


def written(folder: Path, step: int, content: str = "content") -> Path:
    """Publishes a checkpoint; returns its prefix."""
    return publish(partial(folder, step, content), folder, sidecar(step))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def files_of(*steps: int) -> list[str]:
    return sorted(f"model.ckpt-{step}.{suffix}" for step in steps for suffix in SUFFIXES)


def test_publishing_moves_all_files_and_says_what_they_are(tmp_path: Path) -> None:
    before = time.time()
    prefix = written(tmp_path, 30)
    assert prefix == tmp_path / "model.ckpt-30" == prefix_of(tmp_path, 30)
    assert names(tmp_path) == files_of(30)  # No partial folder is left.
    assert (tmp_path / "model.ckpt-30.index").read_text() == "content index"
    found = read_sidecar(prefix)
    assert dataclasses.replace(found, files={}, saved_secs=0.0, write_number=0) == sidecar(30)
    assert before <= found.saved_secs <= time.time()
    assert set(found.files) == set(SUFFIXES[:3])
    assert found.files["index"].bytes == len("content index")
    assert found.files["index"].sha256 == hashlib.sha256(b"content index").hexdigest()
    assert damage(prefix) is None


def test_publishing_a_step_again_replaces_it(tmp_path: Path) -> None:
    written(tmp_path, 30)
    written(tmp_path, 30, "newer")
    assert names(tmp_path) == files_of(30)
    assert (tmp_path / "model.ckpt-30.index").read_text() == "newer index"


def test_fewer_files_replace_more(tmp_path: Path) -> None:
    prefix = written(tmp_path, 30)
    again = begin(tmp_path, 30)
    again.with_name("model.ckpt.index").write_text("alone")
    assert damage(publish(again, tmp_path, sidecar(30))) is None
    assert names(tmp_path) == ["model.ckpt-30.index", "model.ckpt-30.json"]
    assert set(read_sidecar(prefix).files) == {"index"}


class Killed(BaseException):
    """Ends what runs as a signal would: nobody catches it."""


def die_at(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Stops before the `call`-th change of a name in a folder."""
    calls = [0]

    def counted(real: Callable[..., None]) -> Callable[..., None]:
        def change(*arguments: Any, **options: Any) -> None:
            calls[0] += 1
            if calls[0] == call:
                raise Killed
            real(*arguments, **options)

        return change

    for name in ("replace", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    monkeypatch.setattr(Path, "unlink", counted(Path.unlink))


@pytest.mark.parametrize("call", range(1, 9))
@pytest.mark.parametrize("again", [False, True])
def test_wherever_publishing_stops_a_whole_checkpoint_is_there(tmp_path: Path, call: int, again: bool) -> None:
    """Even where the one that is replaced was the only one."""
    written(tmp_path, 30 if again else 20, "older")
    prefix = partial(tmp_path, 30, "newer")
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, call)
        with contextlib.suppress(Killed):
            publish(prefix, tmp_path, sidecar(30))
    tidy(tmp_path)
    assert names(tmp_path) == (files_of(30) if again else files_of(20, 30))
    assert [damage(found) for found in list_checkpoints(tmp_path)] == ([None] if again else [None, None])
    assert (tmp_path / "model.ckpt-30.index").read_text() == "newer index"


@pytest.mark.parametrize("call", range(1, 9))
def test_wherever_deleting_stops_no_half_is_left(tmp_path: Path, call: int) -> None:
    for step in (10, 20):
        written(tmp_path, step)
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, call)
        with contextlib.suppress(Killed):
            forget_old(tmp_path, 1)
    tidy(tmp_path)
    assert names(tmp_path) in (files_of(10, 20), files_of(20))
    assert all(damage(found) is None for found in list_checkpoints(tmp_path))


def test_without_a_number_to_keep_all_stay(tmp_path: Path) -> None:
    for step in (10, 20):
        written(tmp_path, step)
    forget_old(tmp_path, None)
    assert names(tmp_path) == files_of(10, 20)


def test_what_is_not_complete_is_removed(tmp_path: Path) -> None:
    """The sidecar in the partial folder says that all is there; one that is cut off says nothing."""
    written(tmp_path, 10)
    partial(tmp_path, 20)
    sidecar_path(partial(tmp_path, 30)).write_text(sidecar(30).text()[:-20])
    (tmp_path / "mine.partial-40").mkdir()
    tidy(tmp_path)
    assert names(tmp_path) == ["mine.partial-40", *files_of(10)]


def test_a_folder_that_is_not_there_is_tidy(tmp_path: Path) -> None:
    tidy(tmp_path / "nowhere")
    assert names(tmp_path) == []


def test_listing_is_in_the_order_of_writing(tmp_path: Path) -> None:
    for step in (100, 20, 3):
        written(tmp_path, step)
    (tmp_path / "model.ckpt-8.index").write_text("")  # No sidecar: no checkpoint.
    (tmp_path / "model.ckpt-nine.json").write_text("{}")
    assert [prefix.name for prefix in list_checkpoints(tmp_path)] == ["model.ckpt-100", "model.ckpt-20", "model.ckpt-3"]
    assert list_checkpoints(tmp_path / "nowhere") == []


def test_copying_does_not_change_the_order(tmp_path: Path) -> None:
    """`cp -r` gives all files new times, in any order."""
    for step in (100, 20):
        written(tmp_path, step)
    os.utime(tmp_path / "model.ckpt-20.json", (1, 1))
    assert [prefix.name for prefix in list_checkpoints(tmp_path)] == ["model.ckpt-100", "model.ckpt-20"]


def set_clock(monkeypatch: pytest.MonkeyPatch, *times_secs: float) -> None:
    """What the next checkpoints are dated with."""
    clock = iter(times_secs)
    monkeypatch.setattr(checkpoint_folder.time, "time", lambda: next(clock))


def test_a_clock_that_steps_back_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, 5000, 5010, 1400, 1410, 1420)
    for step in (10, 20, 30, 40, 20):
        written(tmp_path, step)
        forget_old(tmp_path, 2)
    assert [prefix.name for prefix in list_checkpoints(tmp_path)] == ["model.ckpt-40", "model.ckpt-20"]


def write_fields(prefix: Path, fields: dict[str, Any]) -> None:
    """Writes a sidecar whose checksum is right."""
    fields = {key: value for key, value in fields.items() if key != "sha256"}
    checksum = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    sidecar_path(prefix).write_text(json.dumps(fields | {"sha256": checksum}, indent=1) + "\n")


def test_the_state_of_an_epoch_is_kept(tmp_path: Path) -> None:
    """With infinite metrics and all bits of a float."""
    prefix = written(tmp_path, 10)
    state = {"number": 2, "rate": 0.1 + 0.2, "sums": {"metrics": [[float("inf"), 1 / 3]]}}
    write_fields(prefix, json.loads(read_sidecar(prefix).text()) | {"epoch": state})
    assert read_sidecar(prefix).epoch == state
    assert damage(prefix) is None


@pytest.mark.parametrize("name", ["step", "write_number", "data", "epoch", "files"])
def test_a_missing_field_is_damage(name: str, tmp_path: Path) -> None:
    prefix = written(tmp_path, 10)
    fields = json.loads(sidecar_path(prefix).read_text())
    del fields[name]
    write_fields(prefix, fields)
    assert f"a field is missing or has the wrong type ('{name}')" in str(damage(prefix))


def test_one_whose_sidecar_cannot_be_read_stays(tmp_path: Path) -> None:
    """Nobody knows how new it is: it may be the newest, and is not in the place of one that can be read."""
    for step in (10, 20, 30, 40):
        written(tmp_path, step)
    sidecar_path(tmp_path / "model.ckpt-10").write_text("{")
    sidecar_path(tmp_path / "model.ckpt-40").write_text("{")
    forget_old(tmp_path, 1)
    assert names(tmp_path) == files_of(10, 30, 40)
    assert [prefix.name[-2:] for prefix in list_checkpoints(tmp_path)] == ["30", "10", "40"]


def test_a_field_that_a_later_version_adds_is_no_damage(tmp_path: Path) -> None:
    prefix = written(tmp_path, 5)
    fields = json.loads(sidecar_path(prefix).read_text())
    del fields["sha256"]
    fields["files"]["index"]["writer"] = 3
    fields["writers"] = 4
    checksum = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    sidecar_path(prefix).write_text(json.dumps(fields | {"sha256": checksum}, indent=1) + "\n")
    assert damage(prefix) is None
    assert read_sidecar(prefix).write_number == 1


@pytest.mark.parametrize(("keep", "left"), [(1, [3]), (2, [20, 3]), (3, [100, 20, 3]), (5, [100, 20, 3])])
def test_the_newest_are_kept(tmp_path: Path, keep: int, left: list[int]) -> None:
    for step in (100, 20, 3):
        written(tmp_path, step)
    (tmp_path / "notes.txt").write_text("mine")
    forget_old(tmp_path, keep)
    assert names(tmp_path) == [*files_of(*left), "notes.txt"]


def test_spared_ones_are_kept_beside_the_newest(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        written(tmp_path, step)
    forget_old(tmp_path, 2, spare={2, 4, 9})
    assert names(tmp_path) == files_of(2, 4, 5)


@pytest.mark.parametrize(("checkpoints", "left"), [(0.5, [4]), (1, [4]), (2.5, [3, 4]), (9, [1, 2, 3, 4])])
def test_the_newest_that_have_so_many_bytes_together_are_kept(
    tmp_path: Path, checkpoints: float, left: list[int]
) -> None:
    for step in (1, 2, 3, 4):
        written(tmp_path, step)
    size_bytes = sum(state.bytes for state in read_sidecar(prefix_of(tmp_path, 4)).files.values())
    forget_old(tmp_path, None, spare={4}, keep_bytes=int(checkpoints * size_bytes))
    assert names(tmp_path) == files_of(*left)


def test_both_limits_hold_beside_the_best_one(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        written(tmp_path, step)
    forget_old(tmp_path, 2, spare={1, 4}, keep_bytes=1 << 30)
    assert names(tmp_path) == files_of(1, 3, 4)
    forget_old(tmp_path, 2, spare={1, 4}, keep_bytes=1)
    assert names(tmp_path) == files_of(1, 4)


def test_forgetting_10_leaves_100(tmp_path: Path) -> None:
    written(tmp_path, 10)
    written(tmp_path, 100)
    forget_old(tmp_path, 1)
    assert names(tmp_path) == files_of(100)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"step": 1}',
        '{"unknown": 1}',
        "3",
        "[" * 100_000,
        '{"format": 3, "a":' * 400 + "1" + "}" * 400,
    ],
)
def test_an_unusable_sidecar_is_named(tmp_path: Path, content: str) -> None:
    prefix = written(tmp_path, 5)
    sidecar_path(prefix).write_text(content)
    with pytest.raises(CheckpointError, match=r"model\.ckpt-5\.json"):
        read_sidecar(prefix)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", True),
        ("examples", "x"),
        *((name, value) for name in ("step", "examples", "write_number") for value in (-1, 2**63, 10**400)),
        *(("saved_secs", value) for value in (float("nan"), float("inf"), 10**400)),
        *(("files", {"index": {"bytes": value, "sha256": ""}}) for value in (-1, 2**63)),
        ("seed", 1.5),
        ("fingerprint", 3),
        ("tracker_run_id", []),
        ("write_number", "x"),
        ("write_number", None),
        ("saved_secs", "x"),
        ("numbering", None),
        ("data", "x"),
        ("files", {"index": {"bytes": "x", "sha256": ""}}),
        ("files", {"index": {"bytes": 3, "sha256": None}}),
        ("files", {"index/../../index": {"bytes": 3, "sha256": ""}}),
    ],
)
def test_a_sidecar_with_a_field_of_another_type_is_unusable_and_no_other_one_is(
    tmp_path: Path, name: str, value: object
) -> None:
    """Its own checksum is right: whatever wrote it, it must not hide the checkpoints beside it."""
    for step in (4, 5):
        written(tmp_path, step)
    sidecar_path(tmp_path / "model.ckpt-5").write_text(dataclasses.replace(sidecar(5), **{name: value}).text())  # type: ignore[arg-type]
    assert list_checkpoints(tmp_path) == [tmp_path / "model.ckpt-4", tmp_path / "model.ckpt-5"]
    assert "its sidecar model.ckpt-5.json is unusable: " in str(damage(tmp_path / "model.ckpt-5"))
    assert damage(tmp_path / "model.ckpt-4") is None


@pytest.mark.parametrize("number", [2, 4])
def test_a_sidecar_of_another_format_is_refused(number: int, tmp_path: Path) -> None:
    prefix = written(tmp_path, 5)
    write_fields(prefix, json.loads(sidecar_path(prefix).read_text()) | {"format": number})
    with pytest.raises(CheckpointError) as refused:
        read_sidecar(prefix)
    assert str(refused.value) == (
        f"checkpoint {prefix}: its sidecar model.ckpt-5.json has format {number}, expected 3. Use the version of "
        "parallax_runner that wrote the checkpoint"
    )


# What stands in the way.


OBSTACLES: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: (path / "full").mkdir(parents=True),
    "a file": lambda path: path.write_text("other"),
    "a loop": lambda path: path.symlink_to(path.name),
    "a link to a folder": lambda path: path.symlink_to("/"),
    "a FIFO": os.mkfifo,
}


@pytest.mark.parametrize("obstacle", OBSTACLES.values(), ids=OBSTACLES)
@pytest.mark.parametrize(
    "name",
    [".partial-30", ".forgotten-20", *(f"model.ckpt-30.{suffix}" for suffix in (*SUFFIXES, "data-00007-of-00009"))],
)
def test_what_is_in_the_way_of_a_checkpoint_is_removed(
    tmp_path: Path, name: str, obstacle: Callable[[Path], object]
) -> None:
    written(tmp_path, 20)
    obstacle(tmp_path / name)
    assert damage(written(tmp_path, 30)) is None
    forget_old(tmp_path, 1)
    assert names(tmp_path) == files_of(30)


@pytest.mark.parametrize("obstacle", OBSTACLES.values(), ids=OBSTACLES)
@pytest.mark.parametrize("name", [".partial-30", ".forgotten-20", ".partial-abc", ".forgotten-abc", ".forgotten-"])
def test_leftovers_go_and_names_of_others_stay(tmp_path: Path, name: str, obstacle: Callable[[Path], object]) -> None:
    written(tmp_path, 20)
    obstacle(tmp_path / name)
    assert tidy(tmp_path) == ()
    assert names(tmp_path) == files_of(20) if name[-1].isdigit() else sorted([name, *files_of(20)])
    assert damage(tmp_path / "model.ckpt-20") is None


def test_a_damaged_replacement_does_not_replace(tmp_path: Path) -> None:
    """A whole checkpoint stays, and what was to take its place is told of."""
    written(tmp_path, 30, "older")
    prefix = partial(tmp_path, 30, "newer")
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, 1)
        with contextlib.suppress(Killed):
            publish(prefix, tmp_path, sidecar(30))
    prefix.with_name("model.ckpt.index").write_text("damaged")
    (note,) = tidy(tmp_path)
    assert note.startswith(f"removed {prefix.parent}, a damaged checkpoint from a run that was killed while saving: ")
    assert names(tmp_path) == files_of(30)
    assert damage(tmp_path / "model.ckpt-30") is None


# What is damaged is noticed.


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_any_flipped_bit_is_noticed(tmp_path: Path, suffix: str) -> None:
    prefix = written(tmp_path, 5)
    file = prefix.with_name(f"{prefix.name}.{suffix}")
    content = file.read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << (place % 8)
        file.write_bytes(changed)
        assert file.name in (damage(prefix) or ""), (place, changed)
    file.write_bytes(content)
    assert damage(prefix) is None


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("size", [0, 7, -1])
def test_a_truncated_file_is_noticed(tmp_path: Path, suffix: str, size: int) -> None:
    prefix = written(tmp_path, 5)
    file = prefix.with_name(f"{prefix.name}.{suffix}")
    file.write_bytes(file.read_bytes()[:size])
    assert file.name in str(damage(prefix))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_missing_file_is_noticed(tmp_path: Path, suffix: str) -> None:
    prefix = written(tmp_path, 5)
    file = prefix.with_name(f"{prefix.name}.{suffix}")
    file.unlink()
    assert file.name in str(damage(prefix))


def test_the_files_of_another_step_are_noticed(tmp_path: Path) -> None:
    """Somebody has copied a checkpoint under the name of another."""
    prefix = written(tmp_path, 5)
    for suffix in SUFFIXES:
        prefix.with_name(f"model.ckpt-5.{suffix}").rename(prefix.with_name(f"model.ckpt-50.{suffix}"))
    assert damage(tmp_path / "model.ckpt-50") == "its sidecar model.ckpt-50.json belongs to step 5"
