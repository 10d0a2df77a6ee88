"""One rank of the reference is a plain TensorFlow session."""

from __future__ import annotations

import numpy as np
import pytest

from tests.single.verify.reference_cases import (
    EXAMPLES,
    OPTIMIZERS,
    Plain,
    assert_equal,
    captured,
    distinct,
    model,
    moved,
    repeated,
    started,
)


@pytest.mark.parametrize("parts", ["dense", "sparse", "both", "clipped"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_rank_is_a_plain_session(optimizer: str, parts: str) -> None:
    single = captured(
        model(
            sparse=parts != "dense",
            dense=parts != "sparse",
            clip=0.3 if parts == "clipped" else None,
            optimizer=optimizer,
        )
    )
    plain = Plain(single)
    initial = plain.values()
    with started(single) as reference:
        assert_equal(reference.values(), initial, tolerance=0)
        for step in range(4):
            losses = reference.step([distinct(step)])
            assert losses == pytest.approx([plain.step(distinct(step))], abs=1e-12)
            assert_equal(reference.values(), plain.values())
            assert int(reference.values()["global_step"]) == step + 1
        assert moved(initial, reference.values())


def test_a_norm_is_taken_over_merged_rows() -> None:
    """Stock TensorFlow clips by the norm of the unmerged rows."""
    single = captured(model(dense=False, clip=0.1))
    table = Plain(single).values()["table"]
    data = repeated(0)
    slopes = 2 * (0.5 * data["target"] + table[data["ids"]] - data["target"]) / EXAMPLES
    gradient = np.zeros_like(table)
    np.add.at(gradient, data["ids"], slopes)
    assert abs(np.linalg.norm(slopes) - np.linalg.norm(gradient)) > 0.1
    with started(single) as reference:
        reference.step([data])
        expected = table - 0.5 * gradient * 0.1 / np.linalg.norm(gradient)
        np.testing.assert_allclose(reference.values()["table"], expected, atol=1e-12)
