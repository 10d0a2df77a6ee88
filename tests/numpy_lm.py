"""The language model's outputs in NumPy, the reference for a served model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def outputs(variables: Mapping[str, np.ndarray], words: np.ndarray) -> dict[str, np.ndarray]:
    """Returns `next_word` and `log_probability`, [batch, length], for `words` of that shape; `variables` are by
    name."""
    rows, units = len(words), variables["lstm/projection"].shape[0]
    cell = np.zeros([rows, units], np.float32)
    output = np.zeros([rows, variables["lstm/projection"].shape[1]], np.float32)
    next_words, log_probabilities = [], []
    for column in words.T:
        inputs = np.concatenate([variables["embedding"][column], output], axis=1)
        gates = inputs @ variables["lstm/kernel"] + variables["lstm/bias"]
        entering, candidate, kept, leaving = np.split(gates, 4, axis=1)
        cell = _sigmoid(kept + 1) * cell + _sigmoid(entering) * np.tanh(candidate)
        output = (_sigmoid(leaving) * np.tanh(cell)) @ variables["lstm/projection"]
        logits = output @ variables["softmax_w"].T + variables["softmax_b"]
        next_words.append(logits.argmax(axis=1))
        log_probabilities.append(logits.max(axis=1) - np.log(np.exp(logits).sum(axis=1)))
    return {"next_word": np.stack(next_words, axis=1), "log_probability": np.stack(log_probabilities, axis=1)}


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))
