"""Which tests execute a fault's line: their own lines, those of fixtures, and those that run at import."""

import pytest

from tests.mutation.covered import RecordedTest, Sources, UnitRecord
from tests.mutation.faults import Fault
from tests.mutation.of_file import tests_of_files as executing

MODULE = "parallax_runner/m.py"
USER = "parallax_runner/user.py"
TEXTS = {
    MODULE: "LIMIT = 3\n\n\ndef work():\n    return LIMIT\n",
    USER: "from parallax_runner.m import LIMIT\n\n\ndef use():\n    return LIMIT\n",
}
IN_FUNCTION = Fault("f", MODULE, "    return LIMIT", "    return 0", "")
AT_IMPORT = Fault("i", MODULE, "LIMIT = 3", "LIMIT = 4", "")
TESTS = (
    RecordedTest("t.py::direct", "u", 1.0),
    RecordedTest("t.py::by_fixture", "u", 1.0, fixtures=frozenset({"run", "tmp_path"})),
    RecordedTest("t.py::by_user", "u", 1.0),
    RecordedTest("t.py::other", "u", 1.0),
)


def names(fault: Fault, lines: dict[str, dict[int, set[str]]]) -> list[str]:
    unit = UnitRecord(TESTS, (), Sources(TEXTS), lambda file: lines.get(file, {}))
    return [test.name for test in unit.tests_of(fault)]


def test_a_test_that_executes_the_line_is_chosen():
    assert names(IN_FUNCTION, {MODULE: {5: {"t.py::direct"}}}) == ["t.py::direct"]


def test_a_line_in_a_shared_fixture_counts_for_all_tests_that_use_it():
    assert names(IN_FUNCTION, {MODULE: {5: {"fixture run"}}}) == ["t.py::by_fixture"]


def test_a_line_that_runs_at_import_counts_for_all_tests_that_use_the_module():
    lines = {
        MODULE: {1: {"t.py::other"}, 4: {"t.py::other"}, 5: {"t.py::direct"}},
        USER: {1: {""}, 4: {""}, 5: {"t.py::by_user"}},
    }
    # «other» only happened to import the module first; it is chosen because the record cannot tell that apart.
    assert names(AT_IMPORT, lines) == ["t.py::direct", "t.py::by_user", "t.py::other"]
    assert names(IN_FUNCTION, lines) == ["t.py::direct"]


def test_a_line_that_ran_outside_of_tests_counts_for_all_tests_that_use_the_module():
    lines = {MODULE: {5: {"", "t.py::direct"}}, USER: {5: {"t.py::by_user"}}}
    assert names(IN_FUNCTION, lines) == ["t.py::direct", "t.py::by_user"]


def test_the_tests_of_a_file_execute_a_function_of_it() -> None:
    lines = {MODULE: {1: {"t.py::other"}, 5: {"t.py::direct", "fixture run"}}, USER: {1: {"t.py::by_user"}}}
    unit = UnitRecord(TESTS, (), Sources(TEXTS), lambda file: lines.get(file, {}))
    assert [test.name for test in unit.tests_within(MODULE)] == ["t.py::direct", "t.py::by_fixture"]
    assert unit.tests_within(USER) == []  # importing it is not executing it


def test_the_tests_of_files_that_still_exist_are_run_cheap_ones_first() -> None:
    here = "tests/single/mutation/test_mutation_covered.py"
    tests = (
        RecordedTest(f"{here}::dear", "u", 9.0),
        RecordedTest(f"{here}::cheap", "u", 1.0),
        RecordedTest("tests/gone.py::gone", "u", 1.0),
    )
    unit = UnitRecord(tests, (), Sources(TEXTS), lambda file: {5: {test.name for test in tests}})
    assert executing([unit, unit], [MODULE]) == [f"{here}::cheap", f"{here}::dear"]


def test_a_module_that_has_changed_must_be_recorded_again():
    with pytest.raises(ValueError, match="has changed since it was recorded"):
        names(Fault("f", MODULE, "return 7", "return 8", ""), {})
