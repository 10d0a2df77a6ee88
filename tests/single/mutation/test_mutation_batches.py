"""Quick tests run first and together; tests that launch run file by file."""

from tests.mutation.covered import RecordedTest
from tests.mutation.hunt import QUICK_SECS, QUICK_TESTS, batches


def slow(name: str, secs: float, **fixtures: float) -> RecordedTest:
    return RecordedTest(name, "u", secs, frozenset(fixtures), fixtures)


def test_quick_tests_come_first_the_cheapest_in_the_first_batch():
    tests = [RecordedTest(f"t.py::{number}", "u", number / 1000) for number in reversed(range(QUICK_TESTS + 1))]
    launching = slow("l.py::run", 20.0)
    assert list(batches([launching, *tests], "plan")) == [tests[1:], [tests[0]], [launching]]


def test_quick_tests_of_the_package_are_in_the_first_batch():
    elsewhere = [RecordedTest(f"tests/single/api/t.py::{number}", "u", 0.1) for number in range(QUICK_TESTS)]
    own = RecordedTest("tests/single/plan/t.py::own", "u", 1.0)
    assert list(batches([*elsewhere, own], "plan")) == [[*elsewhere[:-1], own], [elsewhere[-1]]]


def test_tests_of_a_batch_keep_their_order():
    first, second = RecordedTest("t.py::first", "u", 2.0), RecordedTest("t.py::second", "u", 1.0)
    assert list(batches([first, second], "plan")) == [[first, second]]


def test_a_test_whose_fixture_launches_is_not_quick():
    looks_on = slow("l.py::looks", 0.01, run=QUICK_SECS)
    quick = RecordedTest("t.py::quick", "u", 1.0)
    assert list(batches([looks_on, quick], "plan")) == [[quick], [looks_on]]


def test_the_cheapest_file_of_launches_comes_first_and_a_shared_fixture_costs_once():
    shared = [slow(f"shared.py::{number}", 0.0, run=30.0) for number in range(3)]
    single = [slow("single.py::one", 40.0)]
    assert list(batches([*single, *shared], "plan")) == [shared, single]
