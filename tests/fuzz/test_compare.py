"""Which differences between a run and the reference count."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fuzz.compare import differences, largest, without_noise


def arrays(*values: float, dtype: str = "float64") -> dict[str, np.ndarray]:
    return {"kernel": np.array(values, dtype)}


def test_rounding_is_no_difference() -> None:
    assert differences(arrays(1.0, 1e-12), arrays(1.0 + 1e-12, 0.0)) == {}
    assert differences(arrays(1.0, 2.0, dtype="float32"), arrays(1.00001, 2.0, dtype="float32")) == {}


@pytest.mark.parametrize("run", [(1.0, 2.001), (1.0, np.nan), (np.inf, 2.0), (1.0,)])
def test_what_is_more_than_rounding_is_a_difference(run: tuple[float, ...]) -> None:
    plain = arrays(1.0, 2.0)
    found = differences(arrays(*run), plain)
    assert set(found) == {"kernel"}
    assert "kernel" in largest(found, arrays(*run), plain).text


def test_integers_and_dtypes_must_be_the_same() -> None:
    assert differences(arrays(3, dtype="int64"), arrays(4, dtype="int64"))
    assert differences(arrays(3, dtype="int64"), arrays(3, dtype="int32"))


def test_what_the_reference_itself_shows_is_noise() -> None:
    plain, run = arrays(1.0, 2.0), arrays(1.01, 2.0)
    found = differences(run, plain)
    assert without_noise(found, plain, [arrays(0.99, 2.0), arrays(1.0, 2.0)]) == {}
    assert without_noise(found, plain, [arrays(1.0, 1.9)]), "another element is noise"
    assert without_noise(found, plain, [arrays(1.0 + 1e-9, 2.0)]), "much less than the difference"


def test_an_element_beside_noise_counts() -> None:
    plain, run, other = arrays(1.0, 2.0), arrays(1.01, 2.3), arrays(0.99, 2.0)
    found = without_noise(differences(run, plain), plain, [other])
    assert found["kernel"].tolist() == [0.0, pytest.approx(0.3)]
