"""A real, headless Chromium: the system's own, since Playwright's are downloads of another kind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, ViewportSize, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")  # kept in step with scripts/setup-browser
WINDOW: ViewportSize = {"width": 1280, "height": 800}
# Pages are to be seen as they are on a machine without network.
ARGUMENTS = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]


def find() -> str:
    """Where the browser is. Without one the test is skipped, unless CHROMIUM names one, as in .ci/run."""
    named = os.environ.get("CHROMIUM")
    if named:
        path = shutil.which(named)
        assert path is not None, f"CHROMIUM={named} is not there"
        return path
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    pytest.skip("no Chromium here: scripts/setup-browser installs one (as root), or CHROMIUM=/path/to/one names it")


@contextmanager
def started() -> Iterator[Browser]:
    """The browser; as root it runs without its sandbox, which it refuses there."""
    path = find()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=ARGUMENTS, chromium_sandbox=os.geteuid() != 0, timeout=60_000
        )
        try:
            yield browser
        finally:
            browser.close()
