"""The documentation site in a browser: every page, on a wide screen and on a phone's."""

from __future__ import annotations

import functools
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
# Wide things that scroll by themselves.
SCROLLING = ".md-typeset__scrollwrap, .md-typeset__table, pre, .highlight"
BEYOND_THE_SCREEN = """(scrolling) => [...document.querySelectorAll('.md-content *')]
    .filter(e => !e.closest(scrolling) && e.getBoundingClientRect().right > innerWidth + 1)
    .map(e => `${e.tagName}: ${e.textContent.slice(0, 60)}`)"""
MISSING_PICTURES = "[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src)"


class Quiet(SimpleHTTPRequestHandler):
    """Writes no line for each request."""

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="session")
def site() -> Iterator[tuple[str, list[str]]]:
    """The address of the site that is built now, and its pages."""
    subprocess.run([ROOT / "scripts" / "docs"], check=True, cwd=ROOT)
    folder = ROOT / "site"
    pages = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", pages
        server.shutdown()


@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_fits_the_screen(chromium: Browser, site: tuple[str, list[str]], width: int) -> None:
    address, pages = site
    assert {"index.html", "configuration.html", "benchmarks.html"} <= set(pages)
    faults: list[str] = []
    with closing(chromium.new_context(viewport={"width": width, "height": 844})) as context:
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
        page.on(
            "response", lambda answer: faults.append(f"{answer.url}: {answer.status}") if answer.status >= 400 else None
        )
        for name in pages:
            page.goto(f"{address}/{name}")
            faults += [f"{name}: no picture {url}" for url in page.evaluate(MISSING_PICTURES)]
            faults += [f"{name}: too wide: {what}" for what in page.evaluate(BEYOND_THE_SCREEN, SCROLLING)]
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                faults.append(f"{name}: the page scrolls sideways")
            if page.locator("h1").count() != 1:
                faults.append(f"{name}: not one title")
    assert faults == []


def test_the_menu_opens_on_a_phone_and_the_search_finds_a_key(chromium: Browser, site: tuple[str, list[str]]) -> None:
    with closing(chromium.new_context(viewport={"width": 390, "height": 844})) as context:
        page = context.new_page()
        page.goto(f"{site[0]}/index.html")
        page.locator("label.md-header__button[for='__drawer']").click()
        page.get_by_role("link", name="Which mode to use").first.click()
        page.wait_for_url("**/modes.html")
        page.locator("label.md-header__button[for='__search']").click()
        page.get_by_role("textbox", name="Search").fill("ckpt.save_steps")
        page.locator(".md-search-result__link").first.wait_for()
