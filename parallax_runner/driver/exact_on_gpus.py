"""Makes computations on GPUs comparable, for `action=verify`."""

from __future__ import annotations

import os
import sys

from parallax_runner.process import changes

# cuBLAS and cuDNN read this variable. By default, they round the factors of float32 products to 10 bits (TF32).
NO_TF32 = "NVIDIA_TF32_OVERRIDE"
# TensorFlow reads this variable. By default, many of its kernels for GPUs add numbers in an order that varies.
DETERMINISTIC = "TF_DETERMINISTIC_OPS"


def compute_exactly() -> None:
    """Sets both variables for this process and the processes that it starts, unless the user has set them.

    The driver needs the second variable too, because TensorFlow builds another graph for some functions, such as
    `softmax_cross_entropy_with_logits`, and the driver's graph must equal the workers' graphs.
    """
    changes.set_default(NO_TF32, "0")
    if DETERMINISTIC in os.environ:
        return
    changes.set_default(DETERMINISTIC, "1")
    if (tensorflow := sys.modules.get("tensorflow")) is not None:
        # TensorFlow reads the variable only once, and may have done so already.
        tensorflow.config.experimental.enable_op_determinism()
