"""What a process is told that needs Horovod where it is not installed."""

import sys

import pytest

from parallax_runner.collectives.horovod.backend import Horovod
from parallax_runner.errors import CollectiveError


def test_ops_without_horovod_are_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", None)
    with pytest.raises(CollectiveError, match=r"^Horovod is not installed; .*scripts/setup --horovod"):
        Horovod().ops()
