"""A comparison that says equal must mean it."""

import json
import math

import numpy as np
import pytest
from rich.console import Console

from parallax_runner.verify.compare import Comparison, compare, comparison_table


def values() -> dict[str, np.ndarray]:
    return {
        "table": np.arange(12, dtype=np.float64).reshape(4, 3),
        "bias": np.zeros(3, np.float32),
        "scalar": np.float32(0.5),
        "step": np.int64(7),
    }


def changed(name: str, index: tuple[int, ...], value: float) -> Comparison:
    actual = values()
    actual[name] = np.array(actual[name])
    actual[name][index] = value
    return compare(actual, values(), tolerance=1e-6)


def test_equal() -> None:
    comparison = compare(values(), values(), tolerance=0)
    assert comparison.ok
    assert comparison.first_difference is None
    assert [variable.max_absolute for variable in comparison.variables] == [0, 0, 0, 0]


@pytest.mark.parametrize(("name", "index"), [("table", (2, 1)), ("bias", (2,)), ("scalar", ()), ("step", ())])
def test_one_element_that_differs_is_found(name: str, index: tuple[int, ...]) -> None:
    comparison = changed(name, index, 3.0)
    assert not comparison.ok
    first = comparison.first_difference
    assert first is not None
    assert (first.name, first.index, first.actual) == (name, index, 3)
    assert first.expected == values()[name][index]
    assert first.max_absolute == abs(3 - first.expected)
    assert [variable.name for variable in comparison.variables if not variable.equal] == [name]


def test_the_largest_difference_of_the_first_variable_in_order_is_reported() -> None:
    actual = values()
    actual["bias"][1] = 100
    actual["table"][1, 0] += 1
    actual["table"][3, 2] -= 2
    first = compare(actual, values(), tolerance=1e-6).first_difference
    assert first is not None
    assert (first.name, first.index, first.max_absolute) == ("table", (3, 2), 2)
    assert first.max_relative == 2 / 11
    assert "row 3" in str(first)


def test_tolerance_is_relative_to_the_largest_element_but_at_least_to_1() -> None:
    expected = {"x": np.array([1000.0, 0.0])}
    assert compare({"x": np.array([1000.0, 0.9])}, expected, tolerance=1e-3).ok
    assert not compare({"x": np.array([1000.0, 1.1])}, expected, tolerance=1e-3).ok
    small = {"x": np.array([1e-3])}
    assert compare({"x": np.array([1.9e-3])}, small, tolerance=1e-3).ok
    assert not compare({"x": np.array([2.1e-3])}, small, tolerance=1e-3).ok


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_equals_no_number(number: float) -> None:
    comparison = changed("table", (2, 1), number)
    assert not comparison.ok
    assert comparison.first_difference is not None
    assert comparison.first_difference.index == (2, 1)
    assert comparison.max_relative == math.inf
    expected = values()
    expected["table"][2, 1] = number
    assert not compare(values(), expected, tolerance=1e-6).ok
    both = compare(expected, expected, tolerance=1e-6)
    assert both.ok
    assert both.variables[0].not_finite == 1


def test_infinities_of_other_sign_and_numbers_beside_infinity_differ() -> None:
    assert not compare({"x": np.array([math.inf])}, {"x": np.array([-math.inf])}, tolerance=1).ok
    assert not compare({"x": np.array([math.inf, 1.0])}, {"x": np.array([math.inf, 2.0])}, tolerance=1e-3).ok
    assert not compare({"x": np.array([math.nan])}, {"x": np.array([math.inf])}, tolerance=1).ok


def test_integers_and_strings_are_exact() -> None:
    large = 2**53
    assert not compare({"x": np.int64(large + 1)}, {"x": np.int64(large)}, tolerance=0.5).ok
    assert compare({"x": np.int64(large)}, {"x": np.int64(large)}, tolerance=0).ok
    assert not compare({"x": np.array([1, 2])}, {"x": np.array([1, 3])}, tolerance=10).ok
    assert not compare({"x": np.array([b"a"], object)}, {"x": np.array([b"b"], object)}, tolerance=10).ok
    assert compare({"x": np.array([b"a"], object)}, {"x": np.array([b"a"], object)}, tolerance=0).ok
    assert not compare({"x": np.array([True])}, {"x": np.array([False])}, tolerance=10).ok


def test_bfloat16_is_floating() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    one, near = np.array([1.0], ml_dtypes.bfloat16), np.array([1.0078125], ml_dtypes.bfloat16)
    assert compare({"x": near}, {"x": one}, tolerance=0.01).ok
    assert not compare({"x": near}, {"x": one}, tolerance=0.001).ok
    # As `action=verify` does, by how far the value has moved.
    still, moved = {"x": one}, {"x": np.array([2.0], ml_dtypes.bfloat16)}
    assert compare(moved, moved, tolerance=0.01, initial=still).ok
    assert not compare(still, moved, tolerance=0.01, initial=still).ok


def test_names_shapes_and_dtypes() -> None:
    actual = values()
    del actual["bias"]
    actual["extra"] = np.zeros(1)
    comparison = compare(actual, values(), tolerance=1)
    assert (comparison.missing, comparison.unexpected, comparison.ok) == (("bias",), ("extra",), False)
    assert not compare({**values(), "extra": np.zeros(1)}, values(), tolerance=1).ok
    assert not compare({name: values()[name] for name in ("table", "scalar", "step")}, values(), tolerance=1).ok

    for wrong in (np.zeros((3, 1), np.float32), np.float32(0), np.zeros(3, np.float64)):
        comparison = compare({**values(), "bias": wrong}, values(), tolerance=1)
        assert not comparison.ok
        assert comparison.first_difference is not None
        assert comparison.first_difference.name == "bias"
        assert comparison.first_difference.mismatch


def test_nothing_compared_is_not_equal() -> None:
    assert not compare({}, {}, tolerance=1).ok


def test_empty_arrays_are_equal() -> None:
    assert compare({"x": np.zeros((0, 3))}, {"x": np.zeros((0, 3))}, tolerance=0).ok


@pytest.mark.parametrize("tolerance", [-1.0, math.nan, math.inf])
def test_a_tolerance_that_would_prove_nothing_is_refused(tolerance: float) -> None:
    with pytest.raises(ValueError, match="tolerance"):
        compare(values(), values(), tolerance=tolerance)


def test_json_is_strict_even_with_nan() -> None:
    shown = changed("table", (2, 1), math.nan).as_json()
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    assert shown["ok"] is False
    assert "table" in shown["first_difference"]
    assert shown["variables"][0]["index"] == [2, 1]
    assert shown["variables"][0]["actual"] == "nan"


def test_the_table_shows_what_differs_and_what_is_missing() -> None:
    actual = values()
    actual["table"][2, 1] = 9
    del actual["bias"]
    actual["extra"] = np.zeros(1)
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(comparison_table(compare(actual, values(), tolerance=1e-6)))
    lines = console.export_text().splitlines()
    assert any("table" in line and "[2, 1]" in line and "NO" in line for line in lines)
    assert any("bias" in line and "missing" in line for line in lines)
    assert any("extra" in line and "unexpected" in line for line in lines)
    assert any("scalar" in line and "yes" in line for line in lines)


def test_measures_by_how_far_a_variable_moved_where_the_start_is_known() -> None:
    initial = {"slot": np.zeros(3, np.float32)}
    expected = {"slot": np.array([1e-6, 2e-6, 0.0], np.float32)}
    doubled = {"slot": expected["slot"] * 2}
    assert compare(doubled, expected, tolerance=1e-3).ok
    comparison = compare(doubled, expected, tolerance=1e-3, initial=initial)
    assert not comparison.ok
    assert comparison.max_relative == pytest.approx(1.0)


def test_does_not_take_rounding_for_a_difference_where_a_variable_hardly_moved() -> None:
    initial = {"v": np.array([1.0], np.float32)}
    expected = {"v": np.nextafter(initial["v"], np.float32(2))}
    assert compare(initial, expected, tolerance=1e-3, initial=initial).ok
