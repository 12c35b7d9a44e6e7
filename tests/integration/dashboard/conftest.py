"""A running system and a browser for the tests of the dashboard."""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page

from tests.integration.dashboard.browser import chromium, session, watched
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
            await env.start_silent_worker("empty")
            yield env


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def context(browser: Browser, env: Environment) -> AsyncIterator[BrowserContext]:
    """One session with a valid token for all pages of `page`, so that the files are loaded once."""
    async with session(browser, env.system.http_url, token=TOKEN) as context:
        yield context


@pytest_asyncio.fixture(loop_scope="package")
async def page(context: BrowserContext) -> AsyncIterator[Page]:
    """A page with a valid token."""
    async with watched(context) as page:
        yield page


async def insert_letters(env: Environment, code: str, *numbers: int) -> None:
    """Store one dead letter of each number, in their order."""
    await env.history.rows(
        "INSERT INTO ledger.dead_letter (fingerprint, code, error, exchange, routing_key,"
        " original_routing_key, tries, died_at, stored_at, headers, body, body_bytes, stored_bytes)"
        " SELECT md5($1::text || n), $1, 'letter ' || n, '', '', '', 1, now() + n * interval '1 ms', now(),"
        " '{}', 'abc', 3, 3 FROM unnest($2::integer[]) n",
        code,
        list(numbers),
    )


async def insert_failed_webhook(env: Environment, execution_id: int) -> None:
    """Store a webhook that has failed after three attempts."""
    await env.history.rows(
        "INSERT INTO ledger.webhook (execution_id, url, origin, due_at, created_at, state, attempts,"
        " ended_at, last_error)"
        " VALUES ($1, 'http://127.0.0.1:1/', 'http://127.0.0.1:1', now(), now(), 'failed', 3, now(), 'x')",
        execution_id,
    )
