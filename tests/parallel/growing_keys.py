"""Keys of the equivalence matrix: new ones appear in most steps, on several ranks at once, and some buckets overflow
if each has one place."""

from __future__ import annotations

import numpy as np

from tests.growing_keys import keys_of_bucket

CROWDED = [key for bucket in (0, 1, 2, 5) for key in keys_of_bucket(bucket, 4, first=-500)]
OTHERS = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, size=44).tolist()
KEYS = np.random.default_rng(8).permutation(np.array(CROWDED + OTHERS, np.int64))
FIRST_KEYS, KEYS_PER_STEP = 10, 5
PASSING_KEYS, LEAVING_PER_STEP = 16, 3


def seen_by(step: int) -> np.ndarray:
    """Returns the keys from which a step's keys are drawn. The keys of step 10, a validation, are never trained on."""
    return KEYS[: FIRST_KEYS + KEYS_PER_STEP * step]


def passing(step: int) -> np.ndarray:
    """Returns the keys from which a step's keys are drawn if keys come and go. Some of the first ones come back."""
    begin = LEAVING_PER_STEP * step
    return np.concatenate([KEYS[begin : begin + PASSING_KEYS], KEYS[:4] if step % 5 == 4 else KEYS[:0]])
