"""What a message of TensorFlow comes down to."""

from __future__ import annotations

import pytest

from parallax_runner.errors import reason_in

HINT = "Hint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom"
PLACE = """Graph execution error:

Detected at node 'SaveV2' defined at (most recent call last):
    File "saver.py", line 15, in <module>
Node: 'SaveV2'
"""


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("/disk/m.data; No space left on device", "/disk/m.data; No space left on device"),
        (f"{PLACE}/disk/m; File too large\n\t [[{{{{node SaveV2}}}}]]", "/disk/m; File too large"),
        (
            f"{PLACE}/disk/m; No space left on device\n\t [[{{{{node SaveV2}}}}]]\n{HINT}",
            "/disk/m; No space left on device",
        ),
        (
            f"{PLACE}2 root error(s) found.\n  (0) RESOURCE_EXHAUSTED: /disk/m; No space left on device\n"
            f"\t [[{{{{node SaveV2}}}}]]\n{HINT}\n\n  (1) CANCELLED: other\n0 successful operations.",
            "/disk/m; No space left on device",
        ),
        ("", ""),
        (HINT, HINT),
    ],
)
def test_the_reason_is_what_stands_between_place_and_hint(message: str, reason: str) -> None:
    assert reason_in(message) == reason
