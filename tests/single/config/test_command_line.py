"""Adding overrides to a command line."""

import pytest

from parallax_runner.config.command_line import with_more


@pytest.mark.parametrize(
    ("words", "overrides", "expected"),
    [
        (["-m", "a=1"], ["a=1"], ["-m", "a=1", "more"]),
        (["a=1", "b=2", "-m", "--config-dir", "x"], ["a=1", "b=2"], ["a=1", "b=2", "more", "-m", "--config-dir", "x"]),
        (["-m", "--config-dir", "x"], [], ["-m", "--config-dir", "x", "more"]),
        (["--config-dir", "a=1", "a=1"], ["a=1"], ["--config-dir", "a=1", "more", "a=1"]),
    ],
)
def test_behind_the_others(words: list[str], overrides: list[str], expected: list[str]) -> None:
    assert with_more(words, overrides, ["more"]) == expected
