"""Focus, selection and announcements while a screen is updated; charts, times, addresses."""

import pytest
from playwright.async_api import Page, expect

from tests.support.environment import Environment

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_the_first_tab_skips_to_the_content_and_the_current_screen_is_marked(page: Page) -> None:
    await page.goto("/")
    await expect(page.locator("#live")).to_have_text("Live")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator("#main")).to_be_focused()
    await expect(page.get_by_role("navigation", name="Screens").locator("[aria-current=page]")).to_have_text(
        "Home"
    )


async def test_what_has_the_focus_keeps_it_when_it_is_updated(page: Page, env: Environment) -> None:
    await env.put("focused", max_concurrent=1, pool="empty", entrypoint="tests.e2e.actions:noop")
    execution_id = await env.submit("focused")
    await page.goto("/#/executions?action_ref=focused")
    link = page.get_by_role("link", name=f"#{execution_id}")
    await link.focus()
    await env.http.post(f"/executions/{execution_id}/cancel")
    await expect(page.locator("td .badge")).to_have_text("cancelled", timeout=20_000)
    await expect(link).to_be_focused()


async def test_a_button_that_is_pressed_while_its_row_is_updated_acts_once(
    page: Page, env: Environment
) -> None:
    await env.put("pressed", max_concurrent=1, pool="empty", entrypoint="tests.e2e.actions:noop")
    await env.submit_many([{"action_ref": "pressed"}] * 2)
    await page.goto("/#/queues?search=pressed")
    # It is not listed among the idle ones any more.
    waiting = page.locator("td[data-label=Waiting]")
    await expect(waiting).to_have_text(["1"], timeout=20_000)
    await page.get_by_role("button", name="Actions for pressed").click()
    box = await page.get_by_role("button", name="Limit of pressed").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 5, box["y"] + 5)
    await page.mouse.down()
    await env.submit_many([{"action_ref": "pressed"}] * 3)
    await expect(waiting).to_have_text("4", timeout=20_000)
    assert await page.get_by_role("button", name="Limit of pressed").bounding_box() == box
    await page.mouse.up()
    await expect(page.get_by_role("dialog", name="Limit of pressed")).to_contain_text("Slots in use: 1")
    await page.keyboard.press("Escape")
    await env.stop_running()


async def test_why_an_execution_waits_is_announced_when_the_reason_changes(
    page: Page, env: Environment
) -> None:
    await env.put("announced", max_concurrent=1, pool="empty", entrypoint="tests.e2e.actions:noop")
    _, ahead, last = await env.submit_many([{"action_ref": "announced"}] * 3)
    await page.goto(f"/#/executions/{last}")
    why, spoken = page.locator(".why"), page.locator("#spoken")
    await expect(why).to_contain_text("Position 2")
    await expect(spoken).to_contain_text("1 of 1 slots in use")
    said = await spoken.text_content()
    await env.cancel(ahead)
    await expect(why).to_contain_text("Position 1")
    assert await spoken.text_content() == said
    assert (
        await page.locator("main .why").evaluate("node => node.closest('[role=status], [aria-live]')") is None
    )
    await env.patch("announced", max_concurrent=0)
    await expect(spoken).to_contain_text("the limit of the action is 0")
    await env.stop_running()


async def test_a_chart_has_axes_and_each_value_by_pointer_and_by_key(page: Page, env: Environment) -> None:
    await env.put("charted", max_concurrent=1, pool="empty", entrypoint="tests.e2e.actions:noop")
    await env.submit_many([{"action_ref": "charted"}] * 4)
    await page.goto("/#/queues/charted")
    chart = page.locator(".panel .chart")
    slider = page.get_by_role("slider", name="Waiting executions over time")
    await expect(chart.locator(".values span")).to_have_text(["4", "2", "0"], timeout=20_000)
    await expect(chart.locator(".times")).to_contain_text("4 m 55 s ago")
    await slider.focus()
    await expect(slider).to_have_attribute("aria-valuetext", "3 executions, now", timeout=20_000)
    await expect(chart.locator("output")).to_have_text("3 executions, now")
    await page.keyboard.press("Home")
    await expect(slider).to_have_attribute("aria-valuenow", "0")
    await page.keyboard.press("ArrowRight")
    await expect(slider).to_have_attribute("aria-valuenow", "1")
    await page.get_by_role("heading", level=1).click()
    await expect(chart.locator("output")).to_be_empty()
    box = await slider.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 10)
    await expect(chart.locator("output")).to_have_text("3 executions, now")
    await env.stop_running()
