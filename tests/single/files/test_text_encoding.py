"""Why text could not be decoded."""

from __future__ import annotations

import os

from parallax_runner.files.text_encoding import undecoded


def test_text_that_was_decoded() -> None:
    assert undecoded("übung") is None


def test_bytes_that_are_not_utf_8() -> None:
    assert undecoded(os.fsdecode(b"caf\xe9")) == "it is not valid UTF-8"
    assert undecoded("a\ud800") == "it is not valid UTF-8"


def test_utf_8_that_the_locale_cannot_decode() -> None:
    """As Python decodes it in the locale C without its UTF-8 mode."""
    told = undecoded("übung".encode().decode("ascii", "surrogateescape"))
    assert told is not None and "set LC_ALL=C.UTF-8" in told
