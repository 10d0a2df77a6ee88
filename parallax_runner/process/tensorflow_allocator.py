"""Chooses which allocator TensorFlow uses for tensors in a process (docs/design/0113).

oneDNN's allocator rounds memory up to a power of two, and writes a table of 1/32 of it at once. For a tensor of 2.3 GB
that nothing writes to, this takes 128 MB.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from parallax_runner.process import changes

# TensorFlow reads this variable when it first allocates a tensor, and without oneDNN it ignores it.
VARIABLE = "TF_ONEDNN_USE_SYSTEM_ALLOCATOR"
# TensorFlow accepts several words for yes. Users write «1» or «true», so that this spelling tells other processes that
# the value is not the user's.
_OF_DRIVER = "TRUE"
_NO = "0"


def use_system_allocator() -> None:
    """Lets TensorFlow allocate tensors of this process by the C library, unless the user has decided. Call this
    function before TensorFlow allocates a tensor."""
    changes.set_default(VARIABLE, _OF_DRIVER)


def value_for_children(environ: Mapping[str, str] = os.environ) -> str:
    """Returns the value of `VARIABLE` for workers and servers: the user's, or else TensorFlow's default."""
    value = environ.get(VARIABLE, _NO)
    return _NO if value == _OF_DRIVER else value
