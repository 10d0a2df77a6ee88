"""The package lists its public names without loading them."""

import subprocess
import sys

import parallax_runner


def test_dir_lists_the_public_names_without_tensorflow() -> None:
    """IPython completes names from `dir`, which must answer at once."""
    code = """
import sys
import parallax_runner
listed = dir(parallax_runner)
heavy = [name for name in ("tensorflow", "keras") if name in sys.modules]
print(sorted({*parallax_runner.__all__, "__version__"} - set(listed)), heavy)
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "[] []\n"
    assert {"fit", "parallel_run", "shard"} <= set(parallax_runner.__all__)
