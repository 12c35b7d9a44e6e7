"""What an operator needs when something fails, in a real browser: failures, errors, bulk retry, badges."""

import json
import re
from typing import Final

import pytest
from playwright.async_api import Page, Route, expect

from tests.integration.dashboard.browser import DEADLINE_MILLISECONDS
from tests.support.environment import Environment

pytestmark = pytest.mark.asyncio(loop_scope="package")
expect.set_options(timeout=DEADLINE_MILLISECONDS)


async def fail(env: Environment, count: int = 1, **fields: object) -> list[int]:
    """Let executions of `scripted` fail for good."""
    one = {"action_ref": "scripted", "parameters": {"steps": ["PERMANENT"]}, **fields}
    ids = await env.submit_many([one] * count)
    assert set(await env.ended(*ids)) == {"failed"}
    return ids


async def test_queues_and_the_queue_show_failures_with_the_last_error(page: Page, env: Environment) -> None:
    assert (await env.http.put("/actions/scripted/keys/k", json={"weight": 2})).is_success
    await fail(env, concurrency_key="k")
    ids = await fail(env, 2)
    await page.goto("/#/queues?search=scripted")
    failed = page.get_by_role("row").filter(has_text="scripted").locator("td[data-label=Failed]")
    await expect(failed).to_contain_text("%")
    await page.get_by_role("button", name="Failed").first.click()
    await expect(page.locator("tbody tr").first).to_contain_text("scripted")
    assert "sort=failures" in page.url
    await page.goto("/#/queues/scripted")
    errors = page.get_by_role("table", name="Failures by error").locator("tbody tr")
    await expect(errors).to_contain_text(re.compile(r"\d+ × .*PermanentError"))
    last = errors.get_by_role("link", name=f"#{ids[0]}").or_(errors.get_by_role("link", name=f"#{ids[1]}"))
    await expect(last).to_be_visible()
    await page.get_by_role("link", name="Show them").click()
    await expect(page.locator("tbody tr").first).to_contain_text("failed")
    assert (await env.http.delete("/actions/scripted/keys/k")).is_success


async def test_all_that_match_the_search_are_cancelled_and_the_rest_is_named(
    page: Page, env: Environment
) -> None:
    await env.put("many.waiting", max_concurrent=1, pool="empty", entrypoint="tests.e2e.actions:noop")
    ids = await env.submit_many([{"action_ref": "many.waiting"}] * 60)
    await env.cancel(ids[-1])
    await page.goto("/#/executions")
    await expect(page.get_by_role("button", name="Retry all matching…")).to_be_disabled()
    await page.goto("/#/executions?action_ref=many.waiting")
    await page.get_by_role("button", name="Cancel all matching…").click()
    dialog = page.get_by_role("dialog", name="Cancel 59 executions?")
    await expect(dialog).to_contain_text("Cancel: 58 queued, 1 scheduled.")
    await expect(dialog).to_contain_text("Left out: 1 cancelled (has ended).")
    assert (await env.stats("many.waiting"))["queue_length"] == 58
    await dialog.get_by_label("Reason").fill("not needed")
    await dialog.get_by_role("button", name="Cancel 59 executions").click()
    await expect(page.locator(".bulk .said")).to_contain_text("59 of 59")
    assert set(await env.ended(*ids)) == {"cancelled"}


async def test_a_bulk_change_selects_exactly_what_the_list_shows(page: Page, env: Environment) -> None:
    await env.put("exact", max_concurrent=0)
    first, second = await env.submit_many(
        [{"action_ref": "exact", "priority": n, "metadata": {"tenant": f"t{n}"}} for n in (1, 2)]
    )
    await page.goto("/#/executions?action_ref=exact")
    cancel = page.get_by_role("button", name="Cancel all matching…")
    await expect(cancel).to_be_enabled()
    await page.get_by_label("Priority").select_option(label="1 (first)")
    await expect(page.locator("tbody tr")).to_have_count(1)
    async with page.expect_request("**/executions/cancel") as sent:
        await cancel.click()
    body = json.loads((await sent.value).post_data or "")
    assert body["filter"] == {"action_ref": "exact", "priority": 1}
    await expect(page.get_by_role("dialog", name="Cancel 1 execution?")).to_be_visible()
    await page.keyboard.press("Escape")

    metadata = page.get_by_label("Metadata")
    await metadata.fill("tenant")
    await expect(cancel).to_have_accessible_description("Correct the search first.")
    await metadata.press("Tab")
    await expect(metadata).to_have_accessible_description("Expected key:value, like order:4711.")
    await expect(page.locator("tbody")).to_be_hidden()
    await expect(cancel).to_be_disabled()
    await metadata.fill("tenant:t2")
    await expect(cancel).to_have_accessible_description("The list does not show this search yet.")
    await page.get_by_label("Priority").select_option(label="2")
    await expect(page.locator("tbody tr")).to_contain_text(f"#{second}")
    await expect(cancel).to_be_enabled()

    await page.get_by_label("Worker", exact=True).fill("x" * 2000)
    await page.get_by_label("Worker", exact=True).press("Tab")
    await expect(page.get_by_role("alert").filter(has_text="worker_id")).to_be_visible()
    await expect(page.locator("tbody")).to_be_hidden()
    await expect(cancel).to_have_accessible_description("The list could not be loaded.")
    await page.get_by_label("Worker", exact=True).fill("")
    await page.get_by_label("Idempotency key").fill("none")
    await page.get_by_label("Idempotency key").press("Tab")
    await expect(page.get_by_text("No matching executions.")).to_be_visible()
    await expect(cancel).to_have_accessible_description(
        "An idempotency key names one execution: select it in the list."
    )
    assert (await env.get(first))["status"] == "queued"
    await env.cancel(first)
    await env.cancel(second)


_OVERVIEW: Final = {
    "queues": 1,
    "queue_length": 0,
    "active_count": 0,
    "failures": {"failed": 0, "ended": 0},
    "workers": {"live": 1, "draining": 0, "overdue": 0, "lost": 0, "capacity": 10},
    "dead_letters": 0,
    "trouble": {"database": "no space left"},
    "degraded": {"broker": "a memory alarm", "pool gpu": "another type of queue"},
}


async def test_what_does_not_work_is_a_banner_on_every_screen_until_it_works(page: Page) -> None:
    overview = dict(_OVERVIEW)

    async def events(route: Route) -> None:
        await route.fulfill(
            content_type="text/event-stream", body=f"event: overview\ndata: {json.dumps(overview)}\n\n"
        )

    await page.route("**/api/v1/events*", events)
    await page.goto("/#/tokens")
    await expect(page.get_by_role("alert").locator("p")).to_have_text(
        [
            "Cannot reach the database: no space left",
            "Does not work: broker: a memory alarm",
            "Does not work: pool gpu: another type of queue",
        ]
    )
    overview |= {"trouble": {}, "degraded": {}}
    await expect(page.locator("#trouble")).to_be_hidden()
