"""A dialog says how many items it destroys or whom it affects; the request changes only these."""

import json

import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.integration.dashboard.browser import DEADLINE_MILLISECONDS, watched_page
from tests.integration.dashboard.conftest import insert_letters
from tests.support.environment import Environment

pytestmark = pytest.mark.asyncio(loop_scope="package")
expect.set_options(timeout=DEADLINE_MILLISECONDS)


async def refuse(route: Route) -> None:
    problem = {"code": "invalid_message", "detail": "not now"}
    await route.fulfill(status=422, content_type="application/problem+json", body=json.dumps(problem))


async def test_dead_letters_that_arrive_after_the_question_are_not_purged_and_a_break_off_is_reported(
    page: Page, env: Environment
) -> None:
    await insert_letters(env, "arriving", 1, 2)
    await page.goto("/#/dead-letters?code=arriving")
    rows = page.get_by_role("table", name="Dead letters").locator("tbody tr")
    await expect(rows).to_have_count(2)
    # More than the list shows: the question counts again.
    await insert_letters(env, "arriving", 3)
    button, result = page.get_by_role("button", name="Purge all with this code"), page.locator("p.result")
    await button.click()
    dialog = page.get_by_role("dialog", name="Purge 3 messages with the code arriving?")
    await page.route("**/api/v1/dead-letters/purge", refuse)
    await dialog.get_by_role("button", name="Purge").click()
    await expect(result).to_have_text("0 purged, then: not now")
    await expect(dialog).to_have_count(0)
    await page.unroute("**/api/v1/dead-letters/purge")
    # What arrived meanwhile is part of the next question.
    await insert_letters(env, "arriving", 4)
    await button.click()
    dialog = page.get_by_role("dialog", name="Purge 4 messages with the code arriving?")
    await expect(dialog).to_contain_text("Dead letters that arrive from now on are not purged.")
    await insert_letters(env, "arriving", 5, 6)
    await dialog.get_by_role("button", name="Purge").click()
    await expect(result).to_have_text("4 purged.")
    left = await env.history.rows("DELETE FROM ledger.dead_letter WHERE code = 'arriving' RETURNING error")
    assert sorted(row["error"] for row in left) == ["letter 5", "letter 6"]


async def test_a_revocation_warns_of_the_token_in_use_and_of_the_last_admin(
    browser: Browser, env: Environment
) -> None:
    await env.history.rows(
        "UPDATE ledger.api_token SET revoked_at = now(), revoked_by = 'test' WHERE revoked_at IS NULL"
    )
    token = await env.create_token(name="only", role="admin")
    await env.create_token(name="reader", role="read")
    ids = await env.history.rows("SELECT id FROM ledger.api_token ORDER BY id DESC LIMIT 2")
    other, own = (row["id"] for row in ids)
    async with watched_page(browser, env.system.http_url, token=token) as page:
        await page.goto("/#/tokens")
        in_use, last = "This page uses the token", "No other valid token in the database has the role admin."
        await page.get_by_role("button", name=f"Revoke token {own} of only").click()
        dialog = page.get_by_role("dialog", name=f"Revoke token {own} of only?")
        await expect(dialog).to_contain_text(in_use)
        await expect(dialog).to_contain_text(last)
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name=f"Revoke token {other} of reader").click()
        dialog = page.get_by_role("dialog", name=f"Revoke token {other} of reader?")
        await expect(dialog).to_contain_text("The token has the role read.")
        for words in (in_use, last):
            await expect(dialog).not_to_contain_text(words)
        await page.keyboard.press("Escape")
        await env.create_token(name="another", role="admin")
        await page.get_by_role("button", name=f"Revoke token {own} of only").click()
        dialog = page.get_by_role("dialog", name=f"Revoke token {own} of only?")
        await expect(dialog).to_contain_text(in_use)
        await expect(dialog).not_to_contain_text(last)
