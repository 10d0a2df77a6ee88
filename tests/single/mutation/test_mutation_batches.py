"""Cheap tests run first and together; tests that launch run file by file."""

from tests.mutation.covered import RecordedTest
from tests.mutation.hunt import QUICK_SECS, QUICK_TESTS, batches


def slow(name: str, secs: float, **fixtures: float) -> RecordedTest:
    return RecordedTest(name, "u", secs, frozenset(fixtures), fixtures)


def test_quick_tests_come_first_and_cheapest_first():
    tests = [RecordedTest(f"t.py::{number}", "u", number / 1000) for number in reversed(range(QUICK_TESTS + 1))]
    launching = slow("l.py::run", 20.0)
    found = list(batches([launching, *tests], "plan"))
    assert [len(batch) for batch in found] == [QUICK_TESTS, 1, 1]
    assert found[0][0].name == "t.py::0" and found[-1] == [launching]


def test_quick_tests_of_the_package_come_first():
    elsewhere, own = (
        RecordedTest("tests/single/api/t.py::a", "u", 0.1),
        RecordedTest("tests/single/plan/t.py::b", "u", 1.0),
    )
    assert list(batches([elsewhere, own], "plan")) == [[own, elsewhere]]


def test_a_test_whose_fixture_launches_is_not_quick():
    looks_on = slow("l.py::looks", 0.01, run=QUICK_SECS)
    quick = RecordedTest("t.py::quick", "u", 1.0)
    assert list(batches([looks_on, quick], "plan")) == [[quick], [looks_on]]


def test_the_cheapest_file_of_launches_comes_first_and_a_shared_fixture_costs_once():
    shared = [slow(f"shared.py::{number}", 0.0, run=30.0) for number in range(3)]
    single = [slow("single.py::one", 40.0)]
    assert list(batches([*single, *shared], "plan")) == [shared, single]
