"""Which tests run when: tests/slow.toml, and what a change asks for."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from tests import tiers
from tests.conftest import COLLECTED
from tests.mutation.statements import importers
from tests.tiers import ROOT, Chosen, SlowTests, of_change, slow_tests

ENTRIES = slow_tests()


def slow(tests: str, secs: float = 1.0, *covers: str) -> SlowTests:
    return SlowTests(tests, secs, covers)


@pytest.mark.parametrize(
    ("tests", "node_id", "has"),
    [
        ("tests/chaos", "tests/chaos/test_kills.py::test_a_kill[a]", True),
        ("tests/chaos", "tests/chaos_too/test_kills.py::test_a_kill", False),
        ("tests/a.py", "tests/a.py::test_b", True),
        ("tests/a.py::test_b", "tests/a.py::test_b", True),
        ("tests/a.py::test_b", "tests/a.py::test_b[x]", True),
        ("tests/a.py::test_b", "tests/a.py::test_bc", False),
        ("tests/a.py::*[more-*", "tests/a.py::test_b[more-x.y]", True),
        ("tests/a.py::*[more-*", "tests/a.py::test_b[x-more-y]", False),
    ],
)
def test_an_entry_has_whole_names(tests: str, node_id: str, has: bool) -> None:
    assert slow(tests).has(node_id) is has


def test_a_change_asks_for_what_covers_it() -> None:
    folder, file = slow("tests/a.py", 1.0, "parallax_runner/plan/"), slow("tests/b.py::test_c", 1.0, "README.md")
    entries = [folder, file]
    assert of_change(entries, ["parallax_runner/plan/choose.py"]) == Chosen((folder,), ())
    assert of_change(entries, ["README.md"]) == Chosen((file,), ())
    assert of_change(entries, ["README.md.orig", "parallax_runner/plan.py"]) == Chosen((), ())
    assert of_change(entries, ["tests/b.py"]) == Chosen((file,), ()), "the test itself"
    assert of_change([slow("tests/a.py")], ["tests/a.py"]) == Chosen((), ()), "covers nothing"
    assert of_change(entries, None) == Chosen((folder, file), ()), "no base to compare with"


def test_what_takes_too_long_is_left_out_and_named() -> None:
    short, long = slow("tests/a.py", 30.0, "conf/"), slow("tests/b.py", 40.0, "conf/")
    assert of_change([long, short], ["conf/config.yaml"], limit_secs=60.0) == Chosen((short,), (long,))


def git(folder: Path, *arguments: str) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *own, *arguments], cwd=folder, check=True, capture_output=True)


def test_files_that_differ_from_the_base_on_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    git(origin, "init")
    for name in ("kept.py", "committed.py", "edited.py"):
        (origin / name).write_text("")
    git(origin, "add", ".")
    git(origin, "commit", "-m", "base")
    monkeypatch.setattr(tiers, "ROOT", origin)
    assert tiers.changed_files() is None, "no origin"
    git(tmp_path, "clone", "origin", "clone")
    monkeypatch.setattr(tiers, "ROOT", clone)
    assert tiers.changed_files() == []
    (clone / "committed.py").write_text("1")
    git(clone, "commit", "-a", "-m", "more")
    (clone / "edited.py").write_text("2")
    (clone / "new.py").write_text("3")
    assert tiers.changed_files() == ["committed.py", "edited.py", "new.py"]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.tests)
def test_the_map_names_what_there_is(entry: SlowTests) -> None:
    path, _, function = entry.tests.partition("::")
    files = list(ROOT.glob(path))
    assert files
    for file in files if function else []:
        names = re.findall(r"\b(test_\w+)", file.read_text(encoding="utf-8"))
        pattern = function.partition("[")[0].replace("*", ".*")
        assert any(re.fullmatch(pattern, name) for name in names), names
    assert entry.secs > 0
    for covered in entry.covers:
        assert (ROOT / covered).exists(), covered
        assert (ROOT / covered).is_dir() == covered.endswith("/"), covered


AUTOMATIC = [entry for entry in ENTRIES if entry.covers]


@pytest.mark.parametrize("entry", AUTOMATIC, ids=lambda entry: entry.tests)
def test_slow_tests_run_for_a_change_of_what_they_test(entry: SlowTests) -> None:
    """A folder of tests/single tests the package's folder of this name. A mode's passes are in three folders."""
    _, kind, *folders = Path(entry.tests.partition("::")[0]).parent.parts
    tested = Path("parallax_runner", *folders)
    if kind == "single" and folders and (ROOT / tested).is_dir():
        covers = [Path(covered) for covered in entry.covers]
        assert any(covered.is_relative_to(tested) or tested.is_relative_to(covered) for covered in covers)
    if kind != "single" and "parallax_runner/rewrite/" in entry.covers:
        assert {"parallax_runner/routes/", "parallax_runner/collectives/"} <= set(entry.covers)


def test_the_matrix_runs_for_a_change_of_what_it_imports() -> None:
    """The launch itself has tests of its own."""
    (matrix,) = [entry for entry in ENTRIES if entry.has("tests/parallel/test_equivalence.py::test_x[more-y]")]
    modules = importers({str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in _sources()})
    users = {"tests/parallel/cases.py", "tests/parallel/matrix_worker.py", "tests/parallel/test_equivalence.py"}
    used = [file for file, by in modules.items() if by & users and Path(file).name != "__init__.py"]
    assert len(used) > 15
    assert [file for file in used if not matrix.depends_on(file) and "parallax_runner/launch/" not in file] == []


def _sources() -> list[Path]:
    return [*(ROOT / "parallax_runner").rglob("*.py"), *(ROOT / "tests" / "parallel").glob("*.py")]


def test_each_entry_has_tests(pytestconfig: pytest.Config) -> None:
    """Checks parameters too. If only some files are collected, their entries are checked."""
    if pytestconfig.option.keyword or any("::" in argument for argument in pytestconfig.args):
        pytest.skip("some tests of a file are not collected")
    collected: defaultdict[str, list[str]] = defaultdict(list)
    for node_id in pytestconfig.stash[COLLECTED]:
        collected[node_id.partition("::")[0]].append(node_id)
    assert str(Path(__file__).relative_to(ROOT)) in collected
    without = [
        entry.tests
        for entry in ENTRIES
        for file in [entry.tests.partition("::")[0]]
        if file in collected and not any(map(entry.has, collected[file]))
    ]
    assert without == []
