"""What tests of rewritten graphs share."""

from __future__ import annotations

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.collectives import ops as collectives


@pytest.fixture
def mirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks in one process: the other one asks, sends and adds what this one does."""

    def exchanged(tensor: tf.Tensor, counts: tf.Tensor, *, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.identity(tensor), tf.identity(counts)

    def summed(tensors: list[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        return [tensor + tensor for tensor in tensors]

    monkeypatch.setattr(collectives, "all_to_all", exchanged)
    monkeypatch.setattr(collectives, "sum_over_ranks", summed)
    monkeypatch.setattr(collectives, "concat_over_ranks", lambda tensor, *, name: tf.concat([tensor, tensor], axis=0))
