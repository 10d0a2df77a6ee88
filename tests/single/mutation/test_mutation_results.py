"""What was tried is not tried again, unless the fault or its tests have changed; the table says what was found."""

import dataclasses

from tests.mutation.faults import Fault
from tests.mutation.results import Result, Results, digest_of, table

FAULT = Fault("f", "parallax_runner/m.py", "a", "b", "all breaks")
TESTS = {"t.py::one", "t.py::two"}


def result(by: str | None) -> Result:
    return Result("f", FAULT.digest, digest_of(TESTS), by is not None, by, "fails" if by else "2 tests pass", 1.0)


def test_results_outlive_the_process(tmp_path):
    assert Results(tmp_path / "r").of(FAULT, TESTS) is None
    Results(tmp_path / "r").add(result("t.py::one"))
    assert Results(tmp_path / "r").of(FAULT, TESTS) == result("t.py::one")


def test_a_changed_fault_is_tried_again(tmp_path):
    results = Results(tmp_path / "r")
    results.add(result("t.py::one"))
    assert results.of(dataclasses.replace(FAULT, new="c"), TESTS) is None


def test_a_fault_that_was_not_found_is_tried_again_with_other_tests(tmp_path):
    results = Results(tmp_path / "r")
    results.add(result(None))
    assert results.of(FAULT, TESTS) == result(None)
    assert results.of(FAULT, TESTS | {"t.py::three"}) is None


def test_a_finder_counts_only_where_it_is_among_the_tests(tmp_path):
    results = Results(tmp_path / "r")
    results.add(result("t.py::one"))
    assert results.of(FAULT, TESTS | {"t.py::three"}) == result("t.py::one")
    assert results.of(FAULT, {"t.py::two"}) is None


def test_the_table_names_finders_and_totals():
    other = dataclasses.replace(FAULT, name="g")
    untried = dataclasses.replace(FAULT, name="h")
    shown = table([FAULT, other, untried], [result("t.py::one"), result(None), None])
    assert "| f | `m.py` | all breaks | `t.py::one` | 1 |" in shown
    assert "| g | `m.py` | all breaks | **not found** (2 tests pass) | 1 |" in shown
    assert shown.endswith("1 of 3 faults are found, 1 are not, 1 not tried.")
