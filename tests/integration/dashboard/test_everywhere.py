"""With 10,000 queues the page stays small, finds each, and shows each change."""

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.integration.dashboard.browser import DEADLINE_MILLISECONDS
from tests.support.environment import Environment

pytestmark = pytest.mark.asyncio(loop_scope="package")
expect.set_options(timeout=DEADLINE_MILLISECONDS)

MANY = 10_000


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def many(env: Environment) -> AsyncIterator[Environment]:
    """An action with 10,000 keys, each with a queue of its own."""
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


async def test_ten_thousand_queues_are_paginated_and_searched(page: Page, many: Environment) -> None:
    await page.goto("/#/queues?sort=name")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(50)
    await expect(page.locator(".pages")).to_contain_text("Page 1 of 2")
    assert await page.locator("*").count() < 3000
    first = await rows.first.inner_text()
    await page.get_by_role("button", name="Next").click()
    await expect(page.locator(".pages")).to_contain_text("Page 2 of 2")
    await expect(rows.first).not_to_have_text(first)
    await page.get_by_role("button", name="Previous").click()
    await expect(page.locator(".pages")).to_contain_text("Page 1 of 2")
    await page.get_by_label("Search by action or key").fill("key-07345")
    await expect(rows).to_have_count(1)
    await rows.get_by_role("link").click()
    await expect(page.locator("h1")).to_contain_text("key-07345")


async def test_a_change_in_one_of_ten_thousand_queues_reaches_the_page(page: Page, many: Environment) -> None:
    await page.goto("/#/queues?search=key-04711")
    row = page.locator("tbody tr")
    await expect(row).to_contain_text("0 of 3")
    longer = row.get_by_role("cell", name="2", exact=True)
    await expect(longer).to_have_count(0)
    await many.submit("many", parameters={"key": "key-04711"})
    await expect(longer).to_be_visible()


# The most rows that one task of the page added: an observer is called once for each.
_STEPS = """
  window.steps = [];
  addEventListener("DOMContentLoaded", () => new MutationObserver((changes) => {
    const nodes = changes.flatMap((change) => [...change.addedNodes]);
    const added = nodes.filter((node) => node.nodeName === "TR");
    if (added.length) window.steps.push(added.length);
  }).observe(document.getElementById("main"), { childList: true, subtree: true }));
"""


async def _processor(page: Page) -> Callable[[], Awaitable[float]]:
    """Return a function that reads the processor time of the page, which other processes do not change."""
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})

    async def read() -> float:
        metrics = (await session.send("Performance.getMetrics"))["metrics"]
        values: dict[str, float] = {each["name"]: each["value"] for each in metrics}
        return sum(values[f"{part}Duration"] for part in ("Script", "Layout", "RecalcStyle"))

    return read


async def test_the_page_adds_few_rows_at_a_time_however_many_queues_there_are(
    page: Page, many: Environment
) -> None:
    await page.add_init_script(_STEPS)
    await page.goto("/#/queues?sort=name")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(50)
    used = await _processor(page)
    seconds = [await used()]
    await page.get_by_role("button", name="Next").click()
    await expect(page.locator(".pages")).to_contain_text("Page 2 of 2")
    await expect(rows).to_have_count(50)
    seconds.append(await used())
    await page.get_by_role("button", name="Slots").click()
    await expect(page.locator(".pages")).to_contain_text("Page 1 of 2")
    seconds.append(await used())
    await page.get_by_label("Search by action or key").press_sequentially("key-0734")
    await expect(rows).to_have_count(10)
    # The rows of the search before it are added ten at a time as well.
    await expect(rows.first).to_contain_text("key-0734")
    seconds.append(await used())
    await page.get_by_role("link", name="many").first.click()
    await expect(page.locator("h1")).to_contain_text("key-0734")
    seconds.append(await used())
    # Of scripts and layout, all tasks together.
    assert max(after - before for before, after in pairwise(seconds)) < 0.1, seconds
    steps = await page.evaluate("() => window.steps")
    assert sum(steps) >= 100
    assert max(steps) <= 10, steps
