"""One sweep, one server and one browser for all tests; a page each, photographed when a test fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, StorageState

from tests.e2e import browser, mlflow_ui, recorded_sweep
from tests.e2e.recorded_sweep import RecordedSweep

# The machine is small, and other tests may be running.
PATIENCE_MS = 30_000


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> RecordedSweep:
    """The sweep of docs/browsing.md."""
    browser.find()  # a skip should not take a minute
    return recorded_sweep.record(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="session")
def address(sweep: RecordedSweep) -> Iterator[str]:
    """Where `mlflow ui` shows the sweep."""
    with mlflow_ui.serving(sweep.folder) as address:
        yield address


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser."""
    with browser.started() as started:
        yield started


@pytest.fixture(scope="session")
def habits(chromium: Browser, address: str) -> StorageState:
    """What the browser keeps of a person who has once chosen "Model training" and closed the chat beside it."""
    with closing(chromium.new_context(viewport=browser.WINDOW)) as context:
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(address)
        page.get_by_text("Model training", exact=True).click()
        page.locator("[data-component-id='mlflow.assistant.chat_panel.close']").click()
        return context.storage_state()


@pytest.fixture
def page(chromium: Browser, habits: StorageState, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Page]:
    """A window with an empty page."""
    failed_before = request.session.testsfailed
    with closing(chromium.new_context(viewport=browser.WINDOW, storage_state=habits)) as context:
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        yield page
        if request.session.testsfailed > failed_before:
            path = tmp_path / "seen.png"
            page.screenshot(path=path, full_page=True)
            print(f"\nwhat was to be seen on {page.url} is in {path}")
