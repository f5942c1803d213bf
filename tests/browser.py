"""The browser that tests of pages share: the system's Chromium, which loads nothing of its own."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, sync_playwright

_FLAGS = (
    "--no-sandbox",  # root, in containers
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser, closed at the end."""
    path = shutil.which("chromium")
    assert path, "chromium must be on the path; got none. scripts/test.sh installs it."
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()
