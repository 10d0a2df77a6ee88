"""Mixed precision changes the ops of a session, or is refused where it would change none."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.config.schema import TrainConfig
from parallax_runner.errors import LaunchError
from parallax_runner.train import mixed_precision
from parallax_runner.train.mixed_precision import with_precision
from parallax_runner.train.session_config import session_config

OFF = TrainConfig(steps=1, seed=1, log_every=1, hang_timeout_secs=60.0, max_restarts=0, on_nan="stop")
BFLOAT16 = TrainConfig(
    steps=1, seed=1, log_every=1, hang_timeout_secs=60.0, max_restarts=0, on_nan="stop", mixed_precision="bfloat16"
)


def product(config: tf.ConfigProto) -> np.ndarray:
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        rows = tf.placeholder(tf.float32, [64, 64])
        draw = np.random.default_rng(1).normal(size=(64, 64))
        found: np.ndarray = session.run(tf.nn.relu(tf.matmul(tf.nn.relu(tf.matmul(rows, rows)), rows)), {rows: draw})
    return found


def test_products_are_rounded_to_bfloat16() -> None:
    try:
        config = with_precision(session_config(1), BFLOAT16, uses_gpus=False)
    except LaunchError:
        pytest.skip("oneDNN does not compute in bfloat16 on this CPU")
    exact, rounded = product(session_config(1)), product(config)
    error = np.abs(rounded - exact).max() / np.abs(exact).max()
    assert 1e-5 < error < 2e-2


def test_off_changes_nothing() -> None:
    assert with_precision(session_config(1), OFF, uses_gpus=True) == session_config(1)


def test_a_gpu_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"train.mixed_precision=bfloat16: it changes ops of the CPU only"):
        with_precision(session_config(1), BFLOAT16, uses_gpus=True)


def test_a_cpu_that_computes_in_float32_nevertheless_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_precision, "_computes_in_bfloat16", lambda config: False)
    with pytest.raises(LaunchError, match=r"train.mixed_precision=bfloat16: TensorFlow computes .* in float32"):
        with_precision(session_config(1), BFLOAT16, uses_gpus=False)
