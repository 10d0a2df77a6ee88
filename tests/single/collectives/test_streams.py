"""Streams of exchanges that run at the same time."""

from __future__ import annotations

import pytest

from parallax_runner.collectives.streams import current_stream, stream


def test_exchanges_belong_to_the_innermost_stream() -> None:
    assert current_stream().name == "step"
    with stream("next"):
        with stream("other"):
            assert current_stream().name == "other"
        assert current_stream().name == "next"
    assert current_stream().name == "step"


def test_an_error_ends_the_stream() -> None:
    with pytest.raises(ValueError, match="inside"), stream("next"):
        raise ValueError("inside")
    assert current_stream().name == "step"
