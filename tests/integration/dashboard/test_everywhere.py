"""All screens, also with 10,000 queues: accessible names, one heading, focus, no horizontal scrolling."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.integration.dashboard.browser import DEADLINE_MILLISECONDS, watched_page
from tests.integration.dashboard.conftest import TOKEN
from tests.support.environment import Environment

pytestmark = pytest.mark.asyncio(loop_scope="package")
expect.set_options(timeout=DEADLINE_MILLISECONDS)

MANY = 10_000
SCREENS = [
    "/queues",
    "/queue/many?key=key-00007",
    "/executions",
    "/executions/1",
    "/resources",
    "/workers",
    "/workers/silent",
    "/webhooks",
    "/dead-letters",
]
# Returns the interactive elements without an accessible name.
NAMELESS = """() => [...document.querySelectorAll("a, button, input, summary")].filter((node) => !(
    node.getAttribute("aria-label") || node.textContent.trim()
    || [...(node.labels ?? [])].some((label) => label.textContent.trim())
)).map((node) => node.outerHTML)"""


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def many(env: Environment) -> AsyncIterator[Environment]:
    """An action with 10,000 keys, each with a queue of its own."""
    await env.put("many", max_concurrent=3, concurrency_key="/key", pool="empty")
    await env.submit("many", parameters={"key": "key-00007"})
    await env.history.rows(
        "WITH created AS ("
        "INSERT INTO action_queue (action_id, concurrency_key, max_concurrent)"
        " SELECT a.id, 'key-' || lpad(n::text, 5, '0'), 3"
        " FROM action a, generate_series(1, $1::integer) n WHERE a.ref = 'many' ON CONFLICT DO NOTHING"
        " RETURNING id)"
        " INSERT INTO queue_state SELECT id, 1, 0, 0, 0, 0, 0, NULL, now() FROM created",
        MANY,
    )
    yield env


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
    await many.submit("many", parameters={"key": "key-04711"})
    await expect(row).to_contain_text("1 of 3")


async def test_screens_are_named_and_reached_by_keyboard(page: Page, many: Environment) -> None:
    await page.goto("/")
    await expect(page.locator("#live")).to_have_text("Live")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator("#main")).to_be_focused()
    for screen in SCREENS:
        await page.goto(f"/#{screen}")
        await expect(page.locator("h1")).to_have_count(1)
        await expect(page.locator("main .table").first).to_be_visible()
        assert await page.evaluate(NAMELESS) == [], screen
        assert await page.locator("nav a[aria-current=page]").count() == 1
    await expect(page.get_by_role("banner")).to_be_visible()
    await expect(page.get_by_role("main")).to_be_visible()
    await expect(page.get_by_role("navigation", name="Screens")).to_be_visible()


async def test_an_update_keeps_the_focus(page: Page, many: Environment) -> None:
    await many.put("focus.kept", max_concurrent=1, pool="empty")
    await page.goto("/#/queues?search=focus.kept")
    button = page.get_by_role("button", name="Pause focus.kept")
    await button.focus()
    await many.submit("focus.kept")
    await expect(page.locator("tbody tr")).to_contain_text("1 of 1")
    await expect(button).to_be_focused()


async def test_no_screen_scrolls_horizontally_on_a_phone(browser: Browser, many: Environment) -> None:
    look = {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark", "reduced_motion": "reduce"}
    async with watched_page(browser, many.system.http_url, token=TOKEN, **look) as page:
        for screen in SCREENS:
            await page.goto(f"/#{screen}")
            await expect(page.locator("main .table").first).to_be_visible()
            root = "document.documentElement"
            assert await page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0, screen
        assert await page.evaluate("getComputedStyle(document.querySelector('body')).backgroundColor") == (
            "rgb(18, 22, 29)"
        )
