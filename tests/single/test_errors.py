"""What a message of TensorFlow comes down to."""

from __future__ import annotations

import pytest
import tensorflow as tf

from parallax_runner.errors import lost_server, reason_in

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


RESET = """Graph execution error:

=====================
UNAVAILABLE: From /job:ps/replica:0/task:1:
recvmsg:Connection reset by peer
Additional GRPC error information from remote target /job:ps/replica:0/task:1 while calling /tensorflow.WorkerService/
:UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"recvmsg:Connection reset by peer"}
"""


def test_a_broken_connection_to_a_server_is_one_line() -> None:
    error = tf.errors.UnavailableError(None, None, RESET)
    assert lost_server(error) == "its connection to server 1 broke (recvmsg:Connection reset by peer)"
    assert lost_server(tf.errors.UnavailableError(None, None, "other")) is None
    assert lost_server(ValueError(RESET)) is None
