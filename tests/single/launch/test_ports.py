import socket

import pytest

from parallax_runner.launch.ports import pick_port


def test_a_picked_port_can_be_used() -> None:
    with socket.create_server(("127.0.0.1", pick_port("127.0.0.1"))) as server:
        assert server.getsockname()[1] > 0


def test_an_address_of_another_machine() -> None:
    with pytest.raises(OSError, match="assign"):
        pick_port("192.0.2.1")
