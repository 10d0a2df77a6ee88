"""The journal: what a crash leaves of it is read, and nothing more."""

from __future__ import annotations

import dataclasses
import json
import math
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.errors import ConfigError, StorageError
from parallax_runner.track.mlflow import journal as journals
from parallax_runner.track.mlflow.journal import Header, Journal, as_json, entries, next_journal


def header() -> Header:
    return Header(uri="sqlite:////tmp/x.db", experiment="exp", run_name=None, tags={"comm": "mpi"})


def kinds(path: Path, offset: int = 0) -> list[str]:
    return [entry["kind"] for entry, _ in entries(path, offset)]


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    written = header()
    journal = Journal(tmp_path / "journal.jsonl", written)
    journal.append("metrics", step=1, time_ms=5, metrics={"train/loss": 0.5})
    journal.append_end("finished")
    assert journals.read_header(journal.path) == written
    found = list(entries(journal.path))
    assert [entry["kind"] for entry, _ in found] == ["header", "metrics", "end"]
    assert found[-1][1] == journal.path.stat().st_size
    assert kinds(journal.path, found[0][1]) == ["metrics", "end"]


def test_every_line_is_json_whatever_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    metrics = {name: as_json(value) for name, value in (("a", math.nan), ("b", -math.inf), ("c", 1e300))}
    Journal(path, header()).append("metrics", step=1, time_ms=5, metrics=metrics)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    values = journals.standing(path).last_values
    assert math.isnan(values["a"])
    assert (values["b"], values["c"]) == (-math.inf, 1e300)


def test_a_last_line_without_its_end_is_not_there_yet(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, header()).append_start()
    whole = path.stat().st_size
    with open(path, "a") as file:
        file.write('{"kind": "end", "status": "fin')
    assert kinds(path) == ["header", "start"]
    # Who goes on with the journal does not lose his first entry to the torn one, and nobody reads the torn one.
    Journal(path).append_end("failed")
    assert kinds(path) == ["header", "start", "end"]
    assert [entry["status"] for entry, _ in entries(path, whole)] == ["failed"]
    assert journals.standing(path).is_ended


def test_what_is_no_entry_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, header())
    with open(path, "ab") as file:
        file.write(b"\0" * 100 + b"\n" + b"[1, 2]\n" + b'{"no": "kind"}\n' + b"\n")
    journal.append_start()
    assert kinds(path) == ["header", "start"]


def read_back(path: Path, fields: dict[str, Any]) -> Header:
    path.write_text(json.dumps({"kind": "header", **fields}) + "\n")
    return journals.read_header(path)


def test_a_file_that_begins_otherwise_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    sound = dataclasses.asdict(Header("fake:", "e", None, parent="/sweep"))
    assert read_back(path, sound).parent == "/sweep"
    damaged = [{name: value for name, value in sound.items() if name != left_out} for left_out in sound]
    for name in sound:
        damaged += [sound | {name: value} for value in (3, [], {"a": 1}, True) if type(value) is not type(sound[name])]
    damaged += [sound | {"tags": {"a": 1}}, sound | {"journal_id": "' OR 1=1"}, sound | {"format": 99}]
    texts = [json.dumps({"kind": "header", **fields}) + "\n" for fields in damaged]
    for text in ("", '{"kind": "start"}\n', '{"kind": "header", "format": 99}\n', *texts):
        path.write_text(text)
        with pytest.raises(ConfigError, match="journal"):
            journals.read_header(path)


def test_a_killed_process_loses_nothing_it_has_appended(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from parallax_runner.track.mlflow.journal import Header, Journal\n"
        "journal = Journal(Path(sys.argv[1]), Header('u', 'e', None))\n"
        "for step in range(1000): journal.append('metrics', step=step, time_ms=1, metrics={'a': 1.0})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "journal.jsonl"
    ended = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [entry["step"] for entry, _ in entries(path) if entry["kind"] == "metrics"] == list(range(1000))


def test_a_full_disk_costs_entries_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, header())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))
        for _ in range(3):
            journal.append_start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    journal.append_end("finished")
    assert kinds(path) == ["header", "end"]
    assert len([record for record in caplog.records if "cannot be written" in record.message]) == 1


@pytest.mark.parametrize("room_bytes", [0, 20])
def test_without_room_for_the_first_line_there_is_no_journal(tmp_path: Path, room_bytes: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, before[1]))
        with pytest.raises(StorageError, match=r"journal\.jsonl: .*cannot be created"):
            Journal(tmp_path / "journal.jsonl", header())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert journals.journals(tmp_path) == []


def test_a_journal_without_its_first_line_has_not_begun(tmp_path: Path) -> None:
    Journal(tmp_path / "journal.jsonl", header())
    (tmp_path / "journal.2.jsonl").write_text('{"kind": "head')
    assert journals.begun(tmp_path) == [tmp_path / "journal.jsonl"]
    assert next_journal(tmp_path).name == "journal.3.jsonl"


def test_a_fresh_run_in_a_used_folder_gets_the_next_number(tmp_path: Path) -> None:
    for name in ("journal.jsonl", "journal.2.jsonl", "journal.3.jsonl"):
        assert next_journal(tmp_path) == tmp_path / name
        Journal(tmp_path / name, header())
    for _ in range(4, 11):
        Journal(next_journal(tmp_path), header())
    (tmp_path / "journal.copy.jsonl").touch()
    names = [path.name for path in journals.journals(tmp_path)]
    assert len(names) == 10
    assert (names[0], names[-1]) == ("journal.jsonl", "journal.10.jsonl")


def test_where_a_journal_stands(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", header())
    assert journals.standing(journal.path).start is None
    journal.append_start(summary={"comm": "mpi"})
    journal.append("metrics", step=10, time_ms=1, metrics={"train/loss": 3.0, "validation/loss": 4.0})
    journal.append("metrics", step=20, time_ms=1, metrics={"train/loss": 2.0})
    standing = journals.standing(journal.path)
    assert not standing.is_ended
    assert standing.start is not None
    assert standing.start["summary"] == {"comm": "mpi"}
    assert standing.last_steps == {"train/loss": 20, "validation/loss": 10}
    assert standing.last_values == {"train/loss": 2.0, "validation/loss": 4.0}
    journal.append_end("failed")
    assert journals.standing(journal.path).is_ended
    journal.append_start()
    assert not journals.standing(journal.path).is_ended


def test_one_process_at_a_time_writes(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from parallax_runner.track.mlflow.journal import writing\n"
        "with writing(Path(sys.argv[1]), wait_secs=0.0): print('mine', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], **pipes)
    assert other.stdout is not None
    assert other.stdout.readline() == "mine\n"
    with pytest.raises(BlockingIOError), journals.writing(tmp_path, wait_secs=0.1):
        pass
    other.kill()
    other.wait()
    with journals.writing(tmp_path, wait_secs=5.0):
        pass
