"""What the browser shows of the numbers in documents: as they are stored, whatever their size."""

import json
from typing import Any, Final

import pytest
from playwright.async_api import Page, expect

from tests.integration.dashboard.browser import DEADLINE_MILLISECONDS
from tests.support.environment import Environment

pytestmark = pytest.mark.asyncio(loop_scope="package")
expect.set_options(timeout=DEADLINE_MILLISECONDS)

ACCOUNT: Final = 1970670598291982290
"""JavaScript rounds it to ...300."""
WRITTEN: Final = [ACCOUNT, -ACCOUNT, 10**30 + 1, 1.0, 0.25, 12, f"a {ACCOUNT}.0 in a text"]


async def test_documents_are_shown_as_they_are_stored_and_retried_so(page: Page, env: Environment) -> None:
    execution_id = await env.submit(
        "noop", parameters={"number": ACCOUNT}, metadata={"more": WRITTEN, "account": ACCOUNT}
    )
    await env.ended(execution_id)
    await page.goto(f"/#/executions/{execution_id}")
    await expect_documents(page, parameters={"number": ACCOUNT}, result=ACCOUNT)
    await expect_documents(page, metadata={"more": WRITTEN, "account": ACCOUNT})

    await page.get_by_role("button", name="Retry", exact=True).click()
    await page.get_by_role("dialog").get_by_role("button", name="Retry execution").click()
    await expect(page.locator("h1")).not_to_contain_text(f"#{execution_id}")
    retried_id = int(page.url.rpartition("/")[2])
    assert await env.ended(retried_id) == ["completed"]
    await expect_documents(page, parameters={"number": ACCOUNT}, result=ACCOUNT)
    retried = await env.get(retried_id)
    assert (retried["parameters"], retried["result"]) == ({"number": ACCOUNT}, ACCOUNT)
    assert retried["metadata"] == {"more": WRITTEN, "account": ACCOUNT}


async def test_the_numbers_of_a_schema_are_shown_in_the_form_in_docs_and_in_the_audit_log(
    page: Page, env: Environment
) -> None:
    largest = 2**63 - 1
    account = {"type": "integer", "maximum": largest, "default": ACCOUNT}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"account": account, "another": {"enum": [ACCOUNT, 1]}},
        "required": ["account"],
    }
    await env.put("numbered", max_concurrent=0, parameters_schema=schema)
    await page.goto("/#/queues/numbered")
    await page.get_by_role("button", name="Submit", exact=True).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text(f"up to {largest}")
    await expect(dialog.get_by_label("account")).to_have_value(str(ACCOUNT))
    await dialog.get_by_label("another").select_option(label=str(ACCOUNT))
    await dialog.get_by_role("button", name="Submit").click()
    await expect(page.locator("h1 .badge")).to_have_text("queued")
    shown = await env.get(int(page.url.rpartition("/")[2]))
    assert shown["parameters"] == {"account": ACCOUNT, "another": ACCOUNT}
    await expect_documents(page, parameters={"account": ACCOUNT, "another": ACCOUNT})

    await page.goto("/#/audit-log?subject=numbered")
    row = page.get_by_role("table").locator("tbody tr").first
    assert str(largest) in (await row.text_content() or "")
    await page.goto("/docs#action-numbered")
    described = page.locator("details.action").filter(has_text="numbered")
    await expect(described).to_contain_text(f"up to {largest}")
    await expect(described).to_contain_text(f'"account":{ACCOUNT}')


async def expect_documents(page: Page, **documents: object) -> None:
    for name, value in documents.items():
        await expect(page.get_by_label(name.capitalize(), exact=True)).to_have_text(
            json.dumps(value, indent=2)
        )
