"""With thousands of queues the page stays small, finds each, and shows each change."""

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.integration.dashboard.browser import DEADLINE_MILLISECONDS
from tests.support.environment import Environment

pytestmark = pytest.mark.asyncio(loop_scope="package")
expect.set_options(timeout=DEADLINE_MILLISECONDS)

MANY = 3_000


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def many(env: Environment) -> AsyncIterator[Environment]:
    """An action with as many keys, each with a queue of its own."""
    # No worker serves the pool, so each key has a queue in which something waits.
    await env.put("many", max_concurrent=3, concurrency_key="/key", pool="unserved")
    keys = [f"key-{number:05}" for number in range(1, MANY + 1)]
    for start in range(0, MANY, 1000):
        bodies = [{"action_ref": "many", "parameters": {"key": key}} for key in keys[start : start + 1000]]
        await env.submit_many(bodies)
    yield env
    # All other tests would poll them, too.
    cursor = None
    while True:
        body = {"filter": {"action_ref": "many"}, "cursor": cursor}
        answer = (await env.http.post("/executions/cancel", json=body)).json()
        cursor = answer["next_cursor"]
        if cursor is None:
            break


async def test_thousands_of_queues_are_paginated_and_searched(page: Page, many: Environment) -> None:
    await page.goto("/#/queues?sort=name")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(50)
    await expect(page.locator(".pages")).to_contain_text(re.compile(r"Page 1 of 6\d"))
    assert await page.locator("*").count() < 3000
    first = await rows.first.inner_text()
    await page.get_by_role("button", name="Next").click()
    await expect(page.locator(".pages")).to_contain_text(re.compile(r"Page 2 of 6\d"))
    await expect(rows.first).not_to_have_text(first)
    await page.get_by_role("button", name="Previous").click()
    await expect(page.locator(".pages")).to_contain_text(re.compile(r"Page 1 of 6\d"))
    await page.get_by_label("Search by action or key").fill("key-02345")
    await expect(rows).to_have_count(1)
    await rows.get_by_role("link").click()
    await expect(page.locator("h1")).to_contain_text("key-02345")


async def test_a_change_in_one_of_thousands_of_queues_reaches_the_page(page: Page, many: Environment) -> None:
    await page.goto("/#/queues?search=key-01711")
    row = page.locator("tbody tr")
    await expect(row).to_contain_text("0 of 3")
    longer = row.get_by_role("cell", name="2", exact=True)
    await expect(longer).to_have_count(0)
    await many.submit("many", parameters={"key": "key-01711"})
    await expect(longer).to_be_visible()
