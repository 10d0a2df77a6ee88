"""The reference inserts the keys of all ranks that have examples, for each op that inserts."""

from __future__ import annotations

import numpy as np

from parallax_runner.verify.insert_together import joined


def test_keys_of_ranks_without_examples_are_left_out() -> None:
    of_ranks = [[np.array([3, 1]), np.array([7])], [np.array([9]), np.array([8])], [np.array([1]), np.array([7])]]
    assert [keys.tolist() for keys in joined(of_ranks, [2.0, 0.0, 1.0])] == [[3, 1, 1], [7, 7]]
    assert joined([[], []], [1.0, 1.0]) == []
