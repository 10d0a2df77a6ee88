"""A small project is recorded as the real one is: in several processes, and whichever way these end."""

from pathlib import Path

import pytest

from tests.mutation import recording
from tests.mutation.covered import load_record
from tests.mutation.faults import Fault
from tests.mutation.places import ROOT

MODULE = """\
import os


def plain():
    return "plain"


def shared():
    return "shared"


def ends():
    os._exit(len("end"))


def forked():
    return "forked"


def failing():
    return "failing"
"""
# Of a fork that runs for another test than its parent, as those of tests/forked do.
FORKING = """
import os
from parallax_runner import m
from tests.mutation.forks import record_anew
if os.fork() == 0:
    os.environ["MUTATION_CONTEXT"] = "tests/single/part/test_small.py::test_plain"
    record_anew()
    m.forked()
    os._exit(0)
os.wait()
"""
TESTS = f"""\
import subprocess
import sys

import pytest

from parallax_runner import m


@pytest.fixture(scope="module")
def once():
    return m.shared()


def test_plain():
    assert m.plain()


def test_first(once):
    assert once


def test_second(once):
    assert once


def test_process():
    assert subprocess.run([sys.executable, "-c", "from parallax_runner import m; m.ends()"]).returncode == 3


def test_forking():
    subprocess.run([sys.executable, "-c", {FORKING!r}], check=True)


def test_failing():
    assert not m.failing()
"""
FILE = "tests/single/part/test_small.py"


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name, text in {"parallax_runner/__init__.py": "", "parallax_runner/m.py": MODULE, FILE: TESTS}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    folder = tmp_path / ".mutation"
    places = {"ROOT": tmp_path, "PACKAGE": tmp_path / "parallax_runner", "FOLDER": folder}
    for name, place in {**places, "RAW": folder / "raw", "RECORD": folder / "record"}.items():
        monkeypatch.setattr(recording, name, place)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # has the plugin
    return tmp_path


def executing(project: Path, text: str) -> set[str]:
    """The recorded tests that execute the line with this text."""
    (unit,) = load_record(project / ".mutation" / "record", project / ".mutation" / "sources")
    tests = unit.tests_of(Fault("f", "parallax_runner/m.py", text, "", ""))
    return {test.name.removeprefix(f"{FILE}::") for test in tests}


@pytest.mark.parametrize("addopts", ["", "-n 2"])
def test_lines_belong_to_the_tests_that_execute_them(project, addopts):
    (project / "pytest.ini").write_text(f"[pytest]\naddopts = {addopts}\n")
    recording.record_units(recording.units_of(["tests"]))
    assert executing(project, 'return "plain"') == {"test_plain"}
    assert executing(project, 'return "shared"') == {"test_first", "test_second"}
    assert executing(project, 'os._exit(len("end"))') == {"test_process"}
    assert executing(project, 'return "forked"') == {"test_plain"}
    assert executing(project, 'return "failing"') == set()
    (unit,) = load_record(project / ".mutation" / "record", project / ".mutation" / "sources")
    assert unit.left_out == (f"{FILE}::test_failing",)


def test_a_recorded_unit_is_passed_over_until_its_tests_change(project, capsys):
    (unit,) = recording.units_of(["tests"])
    assert not unit.is_recorded
    recording.record_units([unit])
    assert "1 failed, 5 passed" in capsys.readouterr().out
    assert unit.is_recorded
    recording.record_units([unit])
    assert capsys.readouterr().out == ""
    (project / FILE).write_text(TESTS.replace("assert not m.failing()", "assert m.failing()"))
    assert not unit.is_recorded


def test_a_recording_that_was_stopped_is_none(project, capsys):
    (project / FILE).write_text(TESTS.replace("assert m.plain()", "raise KeyboardInterrupt"))
    (unit,) = recording.units_of(["tests"])
    recording.record_units([unit])
    assert "not recorded" in capsys.readouterr().out and not unit.is_recorded


def test_files_of_single_tests_in_one_folder_are_one_unit(project):
    for name in ("tests/single/part/test_more.py", "tests/integration/test_a.py", "tests/integration/test_b.py"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("")
    assert [unit.files for unit in recording.units_of(["tests"])] == [
        ("tests/integration/test_a.py",),
        ("tests/integration/test_b.py",),
        ("tests/single/part/test_more.py", FILE),
    ]
