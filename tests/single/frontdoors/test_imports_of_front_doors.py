"""The front doors cost nothing to those who do not use them."""

from __future__ import annotations

import subprocess
import sys

import pytest

ENTRIES = {
    "the command line": "import parallax_runner.__main__, parallax_runner.driver.pipeline, parallax_runner.sweep.sweep",
    "a script with fit": "import parallax_runner as parallax; parallax.fit",
    "a script with parallel_run": "import parallax_runner as parallax; parallax.parallel_run",
    "a worker": "import parallax_runner.worker.__main__, parallax_runner.worker.rank",
}
SHOW = "import sys; print([name for name in sys.modules if name.startswith('parallax_runner.frontdoors')])"


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))
def test_no_front_door_is_imported(entry: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"{entry}; {SHOW}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_imported_front_door_is_found() -> None:
    """Otherwise the test above could not fail."""
    entry = "import parallax_runner.frontdoors.tf_config"
    done = subprocess.run([sys.executable, "-c", f"{entry}; {SHOW}"], capture_output=True, text=True, check=True)
    assert "parallax_runner.frontdoors.tf_config" in done.stdout
