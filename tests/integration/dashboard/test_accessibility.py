"""Focus, selection and announcements while a screen is updated; charts, times, addresses."""

import re

import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.integration.dashboard.browser import watched_page
from tests.integration.dashboard.conftest import TOKEN, insert_letters
from tests.support.environment import Environment

pytestmark = pytest.mark.asyncio(loop_scope="package")
RELATIVE = re.compile(r"^(now|.+ ago|in .+)$")


async def test_the_first_tab_skips_to_the_content_and_the_current_screen_is_marked(page: Page) -> None:
    await page.goto("/")
    await expect(page.locator("#live")).to_have_text("Live")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator("#main")).to_be_focused()
    await expect(page.get_by_role("navigation", name="Screens").locator("[aria-current=page]")).to_have_text(
        "Queues"
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


async def test_what_did_not_change_keeps_its_selection_and_its_scroll_position(
    page: Page, env: Environment
) -> None:
    # Without a worker, the reason has no times, which change.
    await env.put("kept", max_concurrent=1, pool="unserved", entrypoint="tests.e2e.actions:noop")
    execution_id = await env.submit("kept", parameters={f"field {n}": n for n in range(100)})
    await page.goto(f"/#/executions/{execution_id}")
    why, shown = page.locator(".why").first, page.get_by_label("Parameters")
    await expect(why).to_contain_text("worker")
    await why.evaluate("node => getSelection().selectAllChildren(node)")
    chosen = await page.evaluate("() => String(getSelection())")
    await expect(shown).to_contain_text("field 99")
    await shown.evaluate("node => { node.scrollTop = 300; node.isTheFirst = true; }")
    # The second answer is asked for after the first one is shown.
    for limit in (2, 3):
        async with page.expect_response(lambda response: f"/executions/{execution_id}" in response.url):
            await env.patch("kept", max_concurrent=limit)
    assert await page.evaluate("() => String(getSelection())") == chosen
    assert await shown.evaluate("node => [node.scrollTop, node.isTheFirst]") == [300, True]
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
    await expect(spoken).to_contain_text("The limit is 0")
    await env.stop_running()


async def test_a_chart_without_a_counted_value_is_not_shown(page: Page, env: Environment) -> None:
    await env.put("uncounted", max_concurrent=1, pool="empty", entrypoint="tests.e2e.actions:noop")

    async def without_values(route: Route) -> None:
        response = await route.fetch()
        body = await response.json()
        for item in body["items"]:
            item["depths"] = [None] * len(item["depths"])
        await route.fulfill(response=response, json=body)

    await page.route("**/api/v1/queues?*", without_values)
    await page.goto("/#/queues/uncounted")
    await expect(page.get_by_role("button", name="Pause")).to_be_enabled()
    await expect(page.locator("figure.chart")).to_be_hidden()
    await page.goto("/#/queues?search=uncounted")
    await expect(page.locator(".scale")).to_have_text("no data yet")
    await page.unroute("**/api/v1/queues?*")
    await page.reload()
    await expect(page.locator(".scale")).to_contain_text("max")
    await expect(page.locator(".spark title")).to_contain_text("Waiting executions over the last minutes")


async def test_a_chart_has_axes_and_each_value_by_pointer_and_by_key(page: Page, env: Environment) -> None:
    await env.put("charted", max_concurrent=1, pool="empty", entrypoint="tests.e2e.actions:noop")
    await env.submit_many([{"action_ref": "charted"}] * 4)
    await page.goto("/#/queues/charted")
    chart = page.locator(".chart")
    slider = page.get_by_role("slider", name="Waiting over the last minutes")
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


async def test_a_former_address_leads_to_its_screen_and_an_unknown_one_leaves_none_behind(
    page: Page, env: Environment
) -> None:
    await env.put("moved", max_concurrent=1)
    title = page.get_by_role("heading", level=1)
    await page.goto("/#/queue/moved?key=x")
    await expect(title).to_contain_text("moved")
    assert page.url.endswith("/#/queues/moved?key=x")
    await page.goto("/#/queues/%")
    await expect(title).to_have_text("%")
    await page.goto("/#/nowhere")
    await expect(title).to_have_text("Page not found")
    await expect(page.locator("nav [aria-current]")).to_have_count(0)
    assert await page.title() == "Page not found · Turnstile"


async def test_times_are_relative_with_the_exact_one_as_tooltip(page: Page, env: Environment) -> None:
    execution_id = await env.submit("noop")
    await env.ended(execution_id)
    await page.goto(f"/#/executions/{execution_id}")
    created = page.locator(".timeline time").first
    await expect(created).to_have_text("3 s ago", timeout=20_000)
    year = (await env.get(execution_id))["created_at"][:4]
    assert year in (await created.get_attribute("title") or "")

    await insert_letters(env, "timed", 1)
    await env.put("timed", max_concurrent=1, pool="empty", entrypoint="tests.e2e.actions:noop")
    for address, column in (
        ("/#/workers", "td[data-label='Last heartbeat'] time"),
        ("/#/dead-letters?code=timed", "td[data-label='Dead-lettered'] time"),
        ("/#/queues/timed", "details.changes tbody th time"),
    ):
        await page.goto(address)
        if "queues" in address:
            await page.get_by_text("Changes", exact=True).click()
        shown = page.locator(column).first
        await expect(shown).to_have_text(RELATIVE)
        await expect(shown).to_have_attribute("title", re.compile(r"\d{4}"))
    await env.history.rows("DELETE FROM ledger.dead_letter WHERE code = 'timed'")


async def test_long_names_push_nothing_out_of_the_screen(browser: Browser, env: Environment) -> None:
    name = "billing.invoices.monthly-statement-with-attachments-and-reminders"
    await env.put(name, max_concurrent=1, concurrency_key="/customer", pool="deserted")
    await env.submit(name, parameters={"customer": "customer-0000000000004711-of-the-subsidiary-in-Graz"})
    # Its button is then the longer one, Resume.
    assert (await env.http.post(f"/actions/{name}/pause")).is_success
    viewport = {"width": 1280, "height": 800}
    async with watched_page(browser, env.system.http_url, token=TOKEN, viewport=viewport) as page:
        for address in ("/#/queues?search=billing", "/#/executions?action_ref=" + name):
            await page.goto(address)
            await expect(page.locator("main tbody")).to_contain_text(name)
            table = page.locator(".table").first
            assert await table.evaluate("node => node.scrollWidth - node.clientWidth") <= 0, address
        brand, identity = [await page.locator(each).bounding_box() for each in (".brand", "#identity")]
        assert brand is not None
        assert identity is not None
        assert identity["y"] < brand["y"] + brand["height"], "who is signed in stands beside the links"
        assert identity["x"] + identity["width"] > 1200
        await page.goto("/#/pools/deserted")
        await expect(page.locator("h1")).to_contain_text("no worker")
        await expect(page.locator("main")).to_contain_text("0 of 0 worker slots granted")
        await expect(page.locator("main")).to_contain_text("executions of its actions wait in their queues")
    await env.stop_running()
