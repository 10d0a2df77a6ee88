"""scripts/setup-browser, with stand-ins for apt-get and id."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup-browser"
ROOT_USER, OTHER_USER = "0", "1000"
# "Installs" a browser beside itself, and notes what it was asked for.
APT_GET = """#!/bin/bash
here=$(dirname "$0")
echo "$*" >>"$here/../asked"
if [ "$1" = install ]; then printf '#!/bin/bash\\n' >"$here/chromium"; chmod +x "$here/chromium"; fi
"""


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with all the programs that the script can find."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "chmod", "dirname"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


def add(tools: Path, name: str, text: str = "#!/bin/bash\n") -> Path:
    path = tools / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def run(tools: Path, *, user: str, **variables: str) -> subprocess.CompletedProcess[str]:
    add(tools, "id", f"#!/bin/bash\necho {user}\n")
    command = [str(tools / "bash"), str(SCRIPT)]
    return subprocess.run(command, env={"PATH": str(tools), **variables}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_a_browser_that_is_there_is_used(name: str, tools: Path) -> None:
    path = add(tools, name)
    add(tools, "apt-get", APT_GET)
    done = run(tools, user=ROOT_USER)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, str(path), "")
    assert not (tools / ".." / "asked").exists()


def test_the_named_one_comes_first(tools: Path) -> None:
    add(tools, "chromium")
    path = add(tools, "other")
    assert run(tools, user=OTHER_USER, CHROMIUM=str(path)).stdout.strip() == str(path)


def test_root_gets_the_systems_package(tools: Path) -> None:
    add(tools, "apt-get", APT_GET)
    done = run(tools, user=ROOT_USER)
    assert (done.returncode, done.stdout.strip()) == (0, str(tools / "chromium"))
    update, install = (tools / ".." / "asked").read_text().splitlines()
    assert update.startswith("update")
    assert install.endswith("--no-install-recommends chromium fonts-dejavu-core")


@pytest.mark.parametrize(("user", "has_apt"), [(OTHER_USER, True), (ROOT_USER, False)])
def test_who_cannot_install_is_told_what_to_do(user: str, has_apt: bool, tools: Path) -> None:
    if has_apt:
        add(tools, "apt-get", APT_GET)
    done = run(tools, user=user)
    assert done.returncode == 1
    assert "no Chromium was found: install one (Debian: apt-get install chromium" in done.stderr
    assert not (tools / ".." / "asked").exists()


def test_a_named_one_that_is_not_there_is_not_replaced(tools: Path) -> None:
    add(tools, "apt-get", APT_GET)
    add(tools, "chromium")
    done = run(tools, user=ROOT_USER, CHROMIUM="/not/there")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no /not/there was found" in done.stderr
