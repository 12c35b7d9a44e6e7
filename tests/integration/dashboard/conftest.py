"""What the tests of the dashboard stand on: statements on a database, a running system, a browser."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.integration.dashboard.browser import chromium, watched_page
from tests.support.protocol import Protocol, connected
from tests.support.stage import Stage, staged
from turnstile.localservers import BrokerServer, DatabaseServer

TOKEN = "a-token-of-the-tests"


@pytest.fixture
async def protocol(database_url: str) -> AsyncIterator[Protocol]:
    async with connected(database_url) as protocol:
        await protocol.register()
        yield protocol


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def stage(
    postgresql: DatabaseServer, rabbitmq: BrokerServer, template_database: str
) -> AsyncIterator[Stage]:
    """One system, with a token, for all tests of this folder that ask for it."""
    name = f"{template_database}_dashboard"
    database_url = postgresql.create_database(name, template_database)
    amqp_url = rabbitmq.create_vhost(name)
    try:
        settings = {"TURNSTILE_API_TOKENS": TOKEN, "TURNSTILE_WEBHOOK_ALLOW_PRIVATE": "true"}
        async with staged(database_url, amqp_url, settings=settings) as stage:
            stage.http.headers["Authorization"] = f"Bearer {TOKEN}"
            yield stage
    finally:
        postgresql.drop_database(name)
        rabbitmq.delete_vhost(name)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="package")
async def page(browser: Browser, stage: Stage) -> AsyncIterator[Page]:
    """A page of somebody who has given the token."""
    async with watched_page(browser, stage.system.http_url, token=TOKEN) as page:
        yield page
