"""A running system and a browser for the tests of the dashboard."""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.integration.dashboard.browser import chromium, watched_page
from tests.support.environment import Environment, running_environment
from turnstile.localservers import BrokerServer, DatabaseServer

TOKEN = "a-token-of-the-tests"


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def env(
    postgresql: DatabaseServer, rabbitmq: BrokerServer, template_database: str
) -> AsyncIterator[Environment]:
    """One system, with a token, for all tests of this folder."""
    name = f"{template_database}_dashboard"
    database_url = postgresql.create_database(name, template_database)
    amqp_url = rabbitmq.create_vhost(name)
    try:
        settings = {"TURNSTILE_API_TOKENS": TOKEN, "TURNSTILE_WEBHOOK_ALLOW_PRIVATE": "true"}
        async with running_environment(database_url, amqp_url, settings=settings) as env:
            env.http.headers["Authorization"] = f"Bearer {TOKEN}"
            yield env
    finally:
        postgresql.drop_database(name)
        rabbitmq.delete_vhost(name)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="package")
async def page(browser: Browser, env: Environment) -> AsyncIterator[Page]:
    """A page with a valid token."""
    async with watched_page(browser, env.system.http_url, token=TOKEN) as page:
        yield page
