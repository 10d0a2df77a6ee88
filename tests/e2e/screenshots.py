"""The pictures of docs/browsing.md: written again where UPDATE_SCREENSHOTS is set."""

from __future__ import annotations

import os
from pathlib import Path

from playwright.sync_api import Page

from tests.e2e.browser import WINDOW

FOLDER = Path(__file__).parents[2] / "docs" / "screenshots"
# Of no use in a picture: the button that opens the chat, and Plotly's own buttons.
HIDDEN = "[data-assistant-ui], .modebar { visibility: hidden !important }"
SETTLE_MS = 1000


def take(page: Page, name: str, *, height: int = WINDOW["height"]) -> None:
    """Writes `NAME.png`, without places of the machine that it was made on."""
    if not os.environ.get("UPDATE_SCREENSHOTS"):
        return
    page.set_viewport_size({"width": WINDOW["width"], "height": height})
    page.mouse.move(0, 0)
    page.wait_for_timeout(SETTLE_MS)  # charts and images fade in
    places = page.get_by_text("Path: ").or_(page.get_by_text("multirun/"))
    page.screenshot(path=FOLDER / f"{name}.png", style=HIDDEN, mask=[places], mask_color="#ffffff")
