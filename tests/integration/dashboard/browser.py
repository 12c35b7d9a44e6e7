"""The machine's own Chromium, headless: found, or installed like the servers, or the tests are skipped."""

import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright

from turnstile.localservers.errors import MissingBinaries
from turnstile.localservers.packages import install, may_install

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DEADLINE_MILLISECONDS = 20_000
_REFUSED = re.compile(r"Failed to load resource: .* status of 4")


def find_chromium() -> str:
    """Return the path of a Chromium; skips the test, and fails it where CI=true, when there is none."""
    found = _found()
    if found is None and may_install():
        try:
            install({"Chromium": "chromium"})
        except MissingBinaries as missing:
            _without(str(missing))
        found = _found()
    return found or _without("no Chromium on PATH; install Debian's package chromium")


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Run a browser."""
    # A container gives root no sandbox of its own, and little shared memory.
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    path = find_chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def watched_page(
    browser: Browser, url: str, *, token: str | None = None, **look: Any
) -> AsyncIterator[Page]:
    """Lend a page of a session of its own, which must not complain about anything."""
    context = await browser.new_context(base_url=url, **look)
    context.set_default_timeout(DEADLINE_MILLISECONDS)
    if token is not None:
        await context.add_init_script(f"sessionStorage.setItem('turnstile.token', '{token}')")
    page = await context.new_page()
    said: list[str] = []
    page.on(
        "console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: said.append(str(error)))
    try:
        yield page
        # What was refused shows in the page; that the browser notes it too is no mistake of the page.
        complaints = [words for words in said if not _REFUSED.match(words)]
        assert complaints == [], f"the browser complains: {complaints}"
    finally:
        await context.close()


def _found() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def _without(reason: str) -> str:
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
