"""A headless Chromium of the machine: found, installed with apt-get as root, or the tests are skipped."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from tests.support.sources import program_of

_LEAN = "chromium-headless-shell"
"""Chromium without windows: the same engine with two thirds of the processor time."""
_PROGRAMS = (_LEAN, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DEADLINE_MILLISECONDS = 20_000
_REFUSED = re.compile(r"Failed to load resource: .* status of 4")


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Run a browser."""
    # In a container root has no sandbox, and shared memory is small.
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    path = program_of(_LEAN, *_PROGRAMS)
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
    """Open a page in a session of its own; errors and warnings in its console fail the test."""
    async with session(browser, url, token=token, **look) as context, watched(context) as page:
        yield page


@asynccontextmanager
async def session(
    browser: Browser, url: str, *, token: str | None = None, **look: Any
) -> AsyncIterator[BrowserContext]:
    """Lend a session, whose pages have this token and share the files that were loaded."""
    context = await browser.new_context(base_url=url, **look)
    context.set_default_timeout(DEADLINE_MILLISECONDS)
    if token is not None:
        await context.add_init_script(f"sessionStorage.setItem('turnstile.token', '{token}')")
    try:
        yield context
    finally:
        await context.close()


@asynccontextmanager
async def watched(context: BrowserContext) -> AsyncIterator[Page]:
    """Open a page; errors and warnings in its console fail the test."""
    page = await context.new_page()
    messages: list[str] = []
    page.on(
        "console",
        lambda message: messages.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: messages.append(str(error)))
    try:
        yield page
        # The browser logs error responses too; the page shows them.
        complaints = [words for words in messages if not _REFUSED.match(words)]
        assert complaints == [], complaints
    finally:
        await page.close()
