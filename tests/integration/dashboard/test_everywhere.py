"""With thousands of queues the page stays small, finds each, and shows each change."""

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


async def test_the_keys_of_thousands_of_queues_are_paginated_and_searched(
    page: Page, many: Environment
) -> None:
    await page.goto("/#/queues?sort=name&search=many")
    await page.get_by_role("button", name="Keys of many", exact=True).click()
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(22)
    await expect(rows.last).to_contain_text("1 to 20 of 3,000 keys")
    assert await page.locator("*").count() < 3000
    first = await rows.nth(1).inner_text()
    await page.get_by_role("button", name="Next keys of many").click()
    await expect(rows.last).to_contain_text("21 to 40 of 3,000 keys")
    await expect(rows.nth(1)).not_to_have_text(first)
    await page.get_by_role("button", name="Previous keys of many").click()
    await expect(rows.last).to_contain_text("1 to 20 of 3,000 keys")
    await page.get_by_label("Search by action or key").fill("key-02345")
    await expect(rows).to_have_count(2)
    await rows.last.get_by_role("link").first.click()
    await expect(page.locator("h1")).to_contain_text("key-02345")


async def test_a_change_in_one_of_thousands_of_queues_reaches_the_page(page: Page, many: Environment) -> None:
    await page.goto("/#/queues?search=key-01711")
    row = page.locator("tbody tr").last
    await expect(row).to_contain_text("0 of 3")
    await expect(row).to_contain_text("no worker in unserved")
    longer = row.get_by_role("cell", name="2", exact=True)
    await expect(longer).to_have_count(0)
    await many.submit("many", parameters={"key": "key-01711"})
    await expect(longer).to_be_visible()
