"""Damaged lines of a ledger, damaged summaries, and jobs of other hosts: a sweep resumes, or says why not."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from parallax_runner.errors import ConfigError, ExportError, ParallaxError, StorageError
from parallax_runner.process.identity import ProcessIdentity
from parallax_runner.sweep import ensemble, objectives_plot, results, resumed, sweep
from parallax_runner.sweep.ledger import SUBMITTED, Account, Job, Ledger, Standing

JOB = Job("a-1", "a=1", ("a=1", "b=2"), "/runs/a-1")
OTHER = Job("a-2", "a=2", ("a=2", "b=2"), "/runs/a-2")
VALUES: tuple[Any, ...] = (
    *(None, True, -5, 0, 1, 2**63, 10**400, 1.5, float("nan"), float("inf"), -float("inf")),
    *("", "0.l", "nan", "1e999", "\0", "\ud800", "\x1b[31m", "x" * 1000, [], ["started"], [[]], {}, {"a": 1}),
)
ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp037")


def damaged(text: bytes) -> Iterator[tuple[str, bytes]]:
    """Every cut of a JSON object, each key without its value and with other values, and other encodings."""
    fields = json.loads(text)
    yield from ((f"cut at {size}", text[:size]) for size in range(0, len(text), 7))
    for key in fields:
        yield f"no {key}", json.dumps({name: value for name, value in fields.items() if name != key}).encode()
        for value in VALUES:
            yield f"{key}={value!r:.40}", json.dumps(fields | {key: value}).encode()
    yield from ((encoding, text.decode().encode(encoding)) for encoding in ENCODINGS)
    yield "zeros", b"\0" * 4096
    yield "one bit", bytes([text[0] ^ 4]) + text[1:]
    yield "no UTF-8", text.replace(b"a", b"\xff")
    yield "nested deeply", b"[" * 100_000
    yield "a list", b"[1, 2]"
    yield "a number of many digits", b'{"event": ' + b"9" * 10_000 + b"}"


def lines_of(folder: Path) -> dict[str, bytes]:
    """One line of each kind, as this version writes it."""
    ledger = Ledger(folder)
    ledger.append("sweep_started", arguments=["-m"])
    ledger.append("started", JOB)
    for event in ("finished", "skipped", "failed", "interrupted"):
        ledger.append(event, JOB, objective=0.5, objective_name="loss", direction="minimize", exit_status=0, error=None)
    ledger.append("stop", exit_status=143)
    ledger.append(SUBMITTED, JOB, slurm_job="12_0")
    ledger.append("host_ended", host="elsewhere")
    return {json.loads(line)["event"]: line for line in ledger.path.read_bytes().splitlines()}


def use(ledger: Ledger) -> Account:
    """Everything that a resumed sweep does with a ledger."""
    account = ledger.read()
    account.running(besides_pid=os.getpid())
    resumed.far(account, [])
    ranked = results.rank(account, [JOB, OTHER])
    results.save(ranked, ledger.path.parent, "finished")
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        Console(file=nowhere).print(results.table(ranked, ledger.path.parent))
    return account


def test_damaged_lines_end_no_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no squeue can be asked
    ledger, tried = Ledger(tmp_path), 0
    sound = lines_of(tmp_path)
    for kind, line in sound.items():
        for what, content in damaged(line):
            ledger.path.write_bytes(sound["started"] + b"\n" + content + b"\n" + sound["finished"] + b"\n")
            account, tried = use(ledger), tried + 1
            assert account.standings[JOB.name].objective == 0.5 or SUBMITTED in kind, (kind, what)
            assert all(0 <= one.pid <= 2**22 for one in account.standings.values()), (kind, what)
    assert tried > 2500


def test_the_number_of_damaged_lines_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger(tmp_path)
    ledger.append("finished", JOB, objective=0.5, objective_name="loss")
    with open(ledger.path, "ab") as file:
        file.write(b'{"event": "finished", "job": 3}\n{"event": "star')
    assert ledger.read().damaged_lines == 2
    sweep._tell_before(ledger, [])
    assert "2 lines cannot be read, and the sweep continues without them" in capsys.readouterr().err


def test_an_event_of_a_later_version_is_no_damage(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append("promoted", JOB, objective="best")
    assert ledger.read() == Account({})


def standing_of(folder: Path, name: str) -> Standing:
    (folder / name).mkdir(exist_ok=True)
    return Standing(
        Job(name, name, (f"a={name}",), str(folder / name)), "finished", 1, float(len(name)), objective_name="loss"
    )


def test_damaged_summaries_end_no_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table, the plot and the ensemble of the jobs."""

    def run(argv: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        for word in argv:
            os.fsencode(word)  # as in the real call
            assert "\0" not in word
        return subprocess.CompletedProcess(argv, 0, stdout="score\n", stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    standings = {name: standing_of(tmp_path, name) for name in ("a", "bb")}
    sound = {"saved_model": "/m", "saved_model_error": None, "words_per_sec": 10.0, "step_ms_p50": 1.0, "steps": 5}
    sound |= {"examples_per_sec": 3.0, "mlflow_run_id": "m", "error": None}
    for name in standings:
        (tmp_path / name / "summary.json").write_text(json.dumps(sound))
    path = tmp_path / "a" / "summary.json"
    refused = 0
    for what, content in damaged(json.dumps(sound).encode()):
        path.write_bytes(content)
        ranked = results.rank(Account(standings), [])
        json.loads(results.save(ranked, tmp_path, "finished").read_text())
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            Console(file=nowhere).print(results.table(ranked, tmp_path))
        try:
            ensemble.make_ensemble(ranked, tmp_path, 2)
        except ExportError as error:
            assert "\n" not in str(error), what
            refused += 1
    assert refused > 40
    objectives_plot.save(ranked, tmp_path)


def test_a_missing_summary_names_the_file(tmp_path: Path) -> None:
    standings = {name: standing_of(tmp_path, name) for name in ("a", "bb")}
    with pytest.raises(ExportError, match=r"a has no SavedModel: .*summary\.json cannot be read: No such file"):
        ensemble.make_ensemble(results.rank(Account(standings), []), tmp_path, 2)


def put(kind: str, path: Path) -> None:
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    else:
        target = path.with_name("elsewhere")
        path.symlink_to(target)
        if "nowhere" not in kind:
            target.write_text("theirs")


@pytest.mark.parametrize("kind", ["a FIFO", "a folder", "a link", "a link that leads nowhere"])
def test_what_is_no_file_in_the_place_of_the_ledger_or_its_lock(tmp_path: Path, kind: str) -> None:
    put(kind, tmp_path / "ledger.jsonl")
    with pytest.raises(StorageError, match=r"ledger\.jsonl: the record of the sweep cannot be opened: "):
        Ledger(tmp_path).read()
    (tmp_path / "second").mkdir()
    put(kind, tmp_path / "second" / "sweep.lock")
    with (
        pytest.raises(ConfigError, match=r"its lock file sweep\.lock cannot be locked: "),
        sweep._only_one(tmp_path / "second"),
    ):
        pass
    assert not (tmp_path / "elsewhere").exists() or (tmp_path / "elsewhere").read_text() == "theirs"


ELSEWHERE = dataclasses.replace(ProcessIdentity.of_this_process(), host="node7", boot_id="another boot")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A ledger with a job that another host has started, and that has not ended."""
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SUBMITIT_EXECUTOR"):
        monkeypatch.delenv(name, raising=False)
    return on_another_host(Ledger(tmp_path))


def on_another_host(ledger: Ledger) -> Ledger:
    ledger.append("started", JOB, **dataclasses.asdict(ELSEWHERE))
    return ledger


def test_a_job_of_another_host_is_neither_alive_nor_dead(elsewhere: Ledger) -> None:
    assert elsewhere.read().standings[JOB.name].status == "running"
    assert elsewhere.read().running(besides_pid=os.getpid()), "the same pid, on another host"
    with pytest.raises(ParallaxError) as raised:
        sweep._check_nothing_runs(elsewhere)
    assert "a-1 was started on host node7" in str(raised.value)
    command = str(raised.value).splitlines()[-1]
    subprocess.run(["sh", "-c", command], check=True)
    sweep._check_nothing_runs(elsewhere)
    assert elsewhere.read().standings[JOB.name].status == "interrupted"
    assert elsewhere.claim(JOB, fail_fast=False) is None


def test_a_host_that_has_ended_may_start_jobs_again(elsewhere: Ledger) -> None:
    with open(elsewhere.path, "a") as file:
        print(json.dumps({"event": "host_ended", "host": "node7"}), file=file)
    on_another_host(elsewhere)
    assert elsewhere.read().standings[JOB.name].status == "running"


def test_no_process_of_this_host_gets_a_signal_that_is_for_another(
    elsewhere: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from parallax_runner.sweep.signals import Forwarder

    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: sent.append(pid))
    monkeypatch.setattr(os, "getpid", lambda: 1)  # the signals of a sweep go to other processes than its own
    assert Forwarder(elsewhere)._pass_on(15, set()) == set()
    assert sent == []


def test_slurm_knows_what_runs_on_other_hosts(
    tmp_path: Path, elsewhere: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that Slurm has requeued, and one whose allocation has ended."""
    elsewhere.path.unlink()
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    on_another_host(elsewhere)
    assert elsewhere.read().standings[JOB.name].status == "interrupted", "Slurm has started this job again, here"
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    (tmp_path / "bin").mkdir()
    squeue = tmp_path / "bin" / "squeue"
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for queued, status in (("12", "running"), ("13", "interrupted")):
        squeue.write_text(f"#!/bin/sh\necho {shlex.quote(queued)}\n")
        squeue.chmod(0o755)
        assert elsewhere.read().standings[JOB.name].status == status


@pytest.mark.parametrize("key", ["start_ticks", "pid", "host", "objective_name"])
def test_an_event_without_its_process_or_the_name_of_its_objective_is_damaged(key: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append("finished", JOB, objective=0.5, objective_name="loss")
    fields = json.loads(ledger.path.read_text())
    del fields[key]
    ledger.path.write_text(json.dumps(fields) + "\n")
    assert (ledger.read().standings, ledger.read().damaged_lines) == ({}, 1)
