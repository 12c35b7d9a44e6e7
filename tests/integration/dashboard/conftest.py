"""A running system and a browser for the tests of the dashboard."""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.integration.dashboard.browser import chromium, watched_page
from tests.support.environment import Environment, running_environment
from tests.support.sources import LentUrls

TOKEN = "a-token-of-the-tests"


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def env(lent_urls: LentUrls) -> AsyncIterator[Environment]:
    """One system, with a token, for all tests of this folder."""
    settings = {"TURNSTILE_API_TOKENS": TOKEN, "TURNSTILE_WEBHOOK_ALLOW_PRIVATE": "true"}
    with lent_urls() as urls:
        async with running_environment(*urls, settings=settings) as env:
            env.http.headers["Authorization"] = f"Bearer {TOKEN}"
            # What is granted in the pool `empty` stays `scheduled`.
            await env.register_silent_worker("empty")
            yield env


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="package")
async def page(browser: Browser, env: Environment) -> AsyncIterator[Page]:
    """A page with a valid token."""
    async with watched_page(browser, env.system.http_url, token=TOKEN) as page:
        yield page
