import pytest

from parallax_runner.track.params import MAX_KEY_CHARS, MAX_VALUE_CHARS, flatten, valid_key


def test_groups_become_dotted_keys_and_values_read_as_on_the_command_line() -> None:
    config = {"comm": {"name": "ps", "ps": {"staleness": 0, "sync": True}}, "tags": {}, "ids": [1, 2], "dir": None}
    assert flatten(config) == {
        "comm.name": "ps",
        "comm.ps.staleness": "0",
        "comm.ps.sync": "true",
        "tags": "{}",
        "ids": "[1, 2]",
        "dir": "null",
    }


def test_nothing_is_flat() -> None:
    assert flatten({}) == {}


def test_values_are_cut() -> None:
    assert flatten({"a": "x" * 7000}) == {"a": "x" * MAX_VALUE_CHARS}


def test_keys_that_become_equal_are_told_apart() -> None:
    assert flatten({"a=b": 1, "a+b": 2, "a@b": 3}) == {"a_b": "1", "a_b_2": "2", "a_b_3": "3"}
    long = "k" * 300
    keys = list(flatten({long + "1": 1, long + "2": 2}))
    assert keys == ["k" * MAX_KEY_CHARS, "k" * (MAX_KEY_CHARS - 2) + "_2"]


@pytest.mark.parametrize(
    ("key", "valid"),
    [
        ("comm.name", "comm.name"),
        ("train/loss", "train/loss"),
        ("a=[b]+@c", "a__b___c"),
        ("größe", "größe"),
        ("", "_"),
        (".", "_."),
        ("../x", "_.._x"),
        ("/x", "__x"),
        ("a//b", "_a__b"),
        ("k" * 251, "k" * 250),
    ],
)
def test_valid_keys(key: str, valid: str) -> None:
    assert valid_key(key) == valid
