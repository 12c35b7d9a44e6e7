"""What an operator needs when something fails, in a real browser: failures, errors, bulk retry, badges."""

import pytest
from playwright.async_api import Page, expect

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
    ids = await fail(env, 2)
    await page.goto("/#/queues?search=scripted")
    failed = page.get_by_role("row").filter(has_text="scripted").locator("td[data-label=Failed]")
    await expect(failed).to_contain_text("%")
    await page.get_by_role("button", name="Failed").click()
    await expect(page.locator("tbody tr").first).to_contain_text("scripted")
    assert "sort=failures" in page.url
    await page.goto("/#/queue/scripted")
    lately = page.get_by_role("region", name="Failures")
    await expect(lately).to_contain_text("executions failed")
    await expect(lately.get_by_role("link", name=f"#{ids[0]}").or_(
        lately.get_by_role("link", name=f"#{ids[1]}"))).to_be_visible()  # fmt: skip
    await lately.get_by_role("link", name="Show them").click()
    await expect(page.locator("tbody tr").first).to_contain_text("failed")
