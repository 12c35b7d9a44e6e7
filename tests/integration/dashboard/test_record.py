"""The audit log, tokens, resources and keys on the screens, and what the address of a list keeps."""

from typing import Any, get_args

import pytest
from playwright.async_api import Browser, Page, expect

from tests.integration.dashboard.browser import DEADLINE_MILLISECONDS, watched_page
from tests.support.environment import Environment
from turnstile.executor.queries.schemas import SubjectKind, Verb

pytestmark = pytest.mark.asyncio(loop_scope="package")
expect.set_options(timeout=DEADLINE_MILLISECONDS)


async def confirm(page: Page, button: str) -> None:
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name=button).click()
    await expect(dialog).to_have_count(0)


async def test_the_audit_log_is_searched_paginated_and_kept_in_the_address(
    page: Page, env: Environment
) -> None:
    await env.put("recorded", max_concurrent=0)
    ids = await env.submit_many([{"action_ref": "recorded"}] * 60)
    answer = await env.http.post("/executions/cancel", json={"filter": {"action_ref": "recorded"}})
    assert answer.json()["changed"] == 60
    await page.goto("/#/audit-log?verb=cancelled&action_ref=recorded")
    rows = page.get_by_role("table", name="Changes").locator("tbody tr")
    await expect(rows).to_have_count(50)
    await page.get_by_role("button", name="Next").click()
    await expect(rows).to_have_count(11)
    await expect(rows.last).to_contain_text('"recorded"')
    assert "cursor=" in page.url
    await page.reload()
    await expect(rows).to_have_count(11)
    await page.get_by_label("Kind").select_option(label="execution")
    await expect(rows).to_have_count(50)
    await page.get_by_label("Subject").fill(str(ids[0]))
    await page.get_by_label("Subject").press("Tab")
    await expect(rows).to_have_count(1)
    await expect(rows.get_by_role("link", name=f"#{ids[0]}")).to_be_visible()

    for label, values in (("Kind", SubjectKind), ("Change", Verb)):
        options = page.get_by_label(label, exact=True).locator("option:not([value=''])")
        offered = await options.evaluate_all("(nodes) => nodes.map((node) => node.value)")
        assert sorted(offered) == sorted(get_args(values)), label

    # A change of many executions is a change of their action.
    await page.goto("/#/queues/recorded")
    await page.get_by_text("Changes", exact=True).click()
    changes = page.locator("details.changes")
    await expect(changes.locator("tbody tr")).to_have_count(50)
    await changes.get_by_role("button", name="Next").click()
    await expect(changes).to_contain_text("executions")
    await expect(changes.locator("tbody tr").last).to_contain_text("created")
    for address in ("/#/dead-letters", "/#/webhooks", "/#/workers"):
        await page.goto(address)
        await page.get_by_text("Changes", exact=True).click()
        await expect(page.locator("details.changes .table")).to_be_visible()


async def test_a_token_is_revoked_on_the_screen_by_an_admin_only(
    page: Page, browser: Browser, env: Environment
) -> None:
    admin = await env.create_token(name="root", role="admin", seconds=86400)
    await env.create_token(name="leaver", role="operate", scope=["reports."])
    async with watched_page(browser, env.system.http_url, token=admin) as other:
        await other.goto("/#/tokens")
        row = other.locator("tbody tr").filter(has_text="leaver")
        await expect(row).to_contain_text("reports.*")
        await expect(row).to_contain_text("never")
        await row.get_by_role("button", name="Revoke").click()
        await expect(other.get_by_role("dialog")).to_contain_text("for good")
        await confirm(other, "Revoke")
        await expect(row).to_contain_text("revoked")
        await expect(row.get_by_role("button")).to_have_count(0)
    await page.goto("/#/tokens")
    await expect(page.get_by_role("alert").filter(has_text="'admin'")).to_be_visible()


async def test_a_resource_is_paused_resumed_and_changed_unless_it_was_changed_meanwhile(
    page: Page, env: Environment
) -> None:
    async def stored(**given: Any) -> dict[str, Any]:
        answer = await env.http.request(
            "PATCH" if given else "GET", "/resources/operated", json=given or None
        )
        assert answer.is_success, answer.text
        return dict(answer.json())

    assert (await env.http.put("/resources/operated", json={"capacity": 3})).is_success
    await page.goto("/#/resources/operated")
    await page.get_by_role("button", name="Pause").click()
    await confirm(page, "Pause")
    await expect(page.locator("h1 .badge")).to_have_text("paused")
    assert (await stored())["paused"]
    await page.get_by_role("button", name="Resume").click()
    await confirm(page, "Resume")
    await page.get_by_role("button", name="Capacity").click()
    number = page.get_by_role("spinbutton", name="Capacity")
    await number.fill("5")
    await confirm(page, "Change capacity")
    await expect(page.locator(".panel")).to_contain_text("0 of 5")

    async with page.expect_response("**/resources/operated"):
        await page.get_by_role("button", name="Capacity").click()
    await number.fill("9")
    await stored(capacity=7)
    await page.get_by_role("button", name="Change capacity").click()
    await expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("was changed since then")
    assert (await stored())["capacity"] == 7
