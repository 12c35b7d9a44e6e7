"""What an operator does on the screens: a worker and its drain, the form of an execution, tokens, /docs."""

import re
from http import HTTPStatus
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.integration.dashboard.browser import DEADLINE_MILLISECONDS, watched_page
from tests.integration.dashboard.conftest import TOKEN
from tests.support.environment import Environment
from tests.support.ledger import LOST_WORKER
from tests.support.traffic import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
expect.set_options(timeout=DEADLINE_MILLISECONDS)


async def test_an_execution_is_submitted_from_the_screen_of_its_action(page: Page, env: Environment) -> None:
    await env.put("formed", max_concurrent=0, submitter_keys=True)
    await page.goto("/#/queues/formed")
    await page.get_by_role("button", name="Submit", exact=True).click()
    dialog = page.get_by_role("dialog", name="Submit an execution of formed")
    parameters = dialog.get_by_label("Parameters")
    await parameters.fill('{\n  "id": 12345678901234567890,\n}')
    await expect(dialog).to_contain_text("Line 2, column 29: remove the comma before }.")
    await parameters.fill("[1]")
    await expect(dialog).to_contain_text("Expected an object")
    await dialog.get_by_role("button", name="Submit").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("Parameters: Expected an object")
    await parameters.fill('{"id": 12345678901234567890}')
    await dialog.get_by_label("Concurrency key").fill("customer-7")
    await dialog.get_by_label("Priority").select_option(label="2")
    await dialog.get_by_label("Delay").fill("soon")
    await dialog.get_by_role("button", name="Submit").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("is no duration")
    await dialog.get_by_label("Delay").fill("1h30m")
    await dialog.get_by_label("Metadata").fill('{"order": "4711"}')
    await dialog.get_by_role("button", name="Submit").click()
    await expect(page.locator("h1 .badge")).to_have_text("delayed")
    shown = await env.get(int(page.url.rpartition("/")[2]))
    assert shown["parameters"] == {"id": 12345678901234567890}
    assert (shown["concurrency_key"], shown["priority"], shown["metadata"]) == (
        "customer-7",
        2,
        {"order": "4711"},
    )


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "minLength": 3, "description": "Who pays."},
        "copies": {"type": "integer", "minimum": 1, "maximum": 9, "default": 2},
        "scale": {"type": "number"},
        "colour": {"enum": ["red", "green"]},
        "is_urgent": {"type": "boolean", "default": False},
        "due": {"type": "string", "format": "date-time"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "address": {"$ref": "#/$defs/Address"},
        "pages": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["customer", "note"],
    "additionalProperties": False,
    "$defs": {
        "Address": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    },
}


async def put_with_schema(env: Environment, ref: str) -> None:
    """Define an action; returns once its schema is in force: executors read schemas once per second."""
    await env.put(ref, max_concurrent=0, parameters_schema=SCHEMA)

    async def refuses() -> bool:
        answer = await env.http.post("/executions", json={"action_ref": ref})
        return answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY

    await until(refuses, f"the schema of {ref}")


async def test_a_form_has_a_field_for_each_parameter_of_the_schema(
    browser: Browser, env: Environment
) -> None:
    await put_with_schema(env, "shaped")
    async with watched_page(browser, env.system.http_url, token=TOKEN, timezone_id="Europe/Berlin") as page:
        await page.goto("/#/queues/shaped")
        await page.get_by_role("button", name="Submit", exact=True).click()
        dialog = page.get_by_role("dialog", name="Submit an execution of shaped")
        submit = dialog.get_by_role("button", name="Submit")
        customer = dialog.get_by_label("customer")
        await expect(customer).to_have_accessible_description("Who pays. String from 3 characters.")
        await expect(dialog.get_by_label("copies")).to_have_attribute("placeholder", "2")
        await expect(dialog.get_by_label("is_urgent").locator("option")).to_have_text(
            ["Default: false", "true", "false"]
        )

        await dialog.get_by_label("copies").fill("1.5")
        await expect(dialog).to_contain_text("Expected a whole number.")
        await submit.click()
        await expect(dialog.get_by_role("alert")).to_have_text("Correct customer, copies.")
        await expect(customer).to_be_focused()

        # What the page does not check comes back from the API, beside its field.
        await customer.fill("me")
        await dialog.get_by_label("copies").fill("10")
        await dialog.get_by_label("address").fill('{"town": 1}')
        await submit.click()
        for name, fault in (
            ("customer", "expected 3 characters or more"),
            ("copies", "expected 9 or less"),
            ("address", "parameters.address.city: required, but missing"),
        ):
            field = dialog.get_by_label(name)
            await expect(field).to_have_attribute("aria-invalid", "true")
            await expect(field).to_have_accessible_description(re.compile(re.escape(fault)))
        await expect(customer).to_be_focused()

        await customer.fill("customer 7")
        await dialog.get_by_label("copies").fill("9")
        await dialog.get_by_label("scale").fill("1.00000000000000000001")
        await dialog.get_by_label("colour").select_option(label="green")
        await dialog.get_by_label("is_urgent").select_option(label="true")
        await dialog.get_by_label("due").fill("2030-07-01T12:30:05")
        await dialog.get_by_label("address").fill('{"city": "Graz"}')
        async with page.expect_request(lambda request: request.method == "POST") as sent:
            await submit.click()
        assert '"scale": 1.00000000000000000001' in ((await sent.value).post_data or "")
        await expect(page.locator("h1 .badge")).to_have_text("queued")
    shown = await env.get(int(page.url.rpartition("/")[2]))
    assert shown["parameters"] == {
        "customer": "customer 7",
        "copies": 9,
        "scale": 1.0,
        "colour": "green",
        "is_urgent": True,
        "due": "2030-07-01T10:30:05.000Z",
        "note": None,
        "address": {"city": "Graz"},
    }
    await env.cancel(shown["id"])


FAULTS_OF_JSON = {
    '{"a": 1': "Line 1, column 8: expected a comma or }, the text ends.",
    "{'a': 1}": "Line 1, column 2: a name is written in double quotes.",
    '{"a"\n 1}': 'Line 2, column 2: expected a colon after the name, found "1".',
    '{"a": tru}': 'Line 1, column 7: expected a value, found "t".',
    '{"a": 01}': 'Line 1, column 7: expected a value, found "0".',
    '{"a": "x\ny"}': "Line 1, column 7: this text has no closing double quote, or an invalid escape.",
    '{"a": 1} 2': 'Line 1, column 10: expected nothing more, found "2".',
    "": "Line 1, column 1: expected a value, the text ends.",
}


async def test_a_fault_in_json_is_named_with_its_location(page: Page) -> None:
    await page.goto("/docs")
    read = "async (texts) => texts.map((await import('/dashboard/json_text.js')).readJson)"
    assert await page.evaluate(read, [*FAULTS_OF_JSON]) == [
        {"problem": each} for each in FAULTS_OF_JSON.values()
    ]


async def test_the_header_shows_the_token_and_what_it_may_not_do_is_disabled_with_the_reason(
    browser: Browser, env: Environment
) -> None:
    await env.put("guarded", max_concurrent=0)
    execution_id = await env.submit("guarded")
    token = await env.create_token(name="alice", role="read", seconds=86400)
    async with watched_page(browser, env.system.http_url) as page:
        await page.goto("/#/queues/guarded")
        prompt = page.get_by_role("dialog", name="Token required")
        await prompt.get_by_label("Token").fill(token)
        await prompt.get_by_role("button", name="Continue").click()
        await page.locator("#identity summary").click()
        await expect(page.locator("#identity")).to_contain_text("alice")
        await expect(page.locator("#identity dl")).to_contain_text("read")
        await expect(page.locator("#identity dl")).not_to_contain_text("never")
        for name in ("Submit", "Pause", "Limit"):
            button = page.get_by_role("button", name=name, exact=True)
            await expect(button).to_be_disabled()
            await expect(button).to_have_attribute(
                "title",
                "Not allowed: this needs a token with the role"
                f" '{'submit' if name == 'Submit' else 'operate'}';"
                " that of 'alice' has 'read'.",
            )
            await expect(button).to_have_accessible_description(await button.get_attribute("title") or "")
        await page.get_by_role("button", name="Pause").click(force=True)
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await page.goto(f"/#/executions/{execution_id}")
        await expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
        await page.goto("/#/workers")
        await expect(page.get_by_role("button", name="Drain").first).to_be_disabled()

        await page.locator("#identity summary").click()
        await page.get_by_role("button", name="Sign out").click()
        await expect(prompt).to_be_visible()


async def test_workers_of_one_name_are_one_row_and_their_losses_are_acknowledged_together(
    page: Page, env: Environment
) -> None:
    held = await env.submit("scripted", parameters={"steps": ["OK"]})
    await env.history.rows(LOST_WORKER)
    await env.history.rows("UPDATE ledger.worker SET held_ids = $1 WHERE worker_id = 'lost'", [held])
    await env.history.rows(LOST_WORKER.replace("'lost', 1", "'lost-2', 1"))
    alert = page.get_by_role("link", name="2 workers lost in the last 24 hours")
    await page.goto("/#/workers")
    # The badge is read every few seconds.
    await expect(alert).to_be_visible(timeout=20_000)
    await alert.click()
    row = page.locator("tbody tr")
    await expect(row).to_have_count(1)
    await expect(row).to_contain_text("1 more of this name")
    await expect(row.get_by_role("link", name=f"#{held}")).to_be_visible()
    await row.get_by_role("button", name="Acknowledge render-1").click()
    dialog = page.get_by_role("dialog", name="Acknowledge the loss of 2 workers with the name render-1?")
    await dialog.get_by_role("button", name="Acknowledge").click()
    await expect(row.locator(".badge").first).to_have_text("lost acknowledged")
    await expect(row.get_by_role("button", name="Acknowledge render-1")).to_have_count(0)
    await expect(page.locator("nav .alert[href*=workers]")).to_be_hidden(timeout=20_000)
    await page.goto("/#/workers/lost")
    held_then = page.get_by_role("table", name="What the worker held when it was gone")
    await expect(held_then.locator("tbody tr")).to_contain_text("not started")
    await env.history.rows("DELETE FROM ledger.worker WHERE name = 'render-1'")


async def test_the_page_of_the_api_signs_in_and_shows_every_operation(
    browser: Browser, env: Environment
) -> None:
    async with watched_page(browser, env.system.http_url) as page:
        await page.goto("/docs")
        prompt = page.get_by_role("dialog", name="Token required")
        await prompt.get_by_label("Token").fill(TOKEN)
        await prompt.get_by_role("button", name="Continue").click()
        described = (await env.http.get(f"{env.system.http_url}/openapi.json")).json()
        operations = sum(len(methods) for methods in described["paths"].values())
        await expect(page.locator("details.operation")).to_have_count(operations)
        await page.get_by_label("Search by path").fill("drain")
        await expect(page.locator("details.operation:visible")).to_have_count(1)
        await page.locator("details.operation:visible summary").click()
        await expect(page.get_by_role("table", name="Responses")).to_contain_text("202")
        await page.get_by_role("table", name="Responses").get_by_role("link", name="WorkerDetail").click()
        await expect(page.get_by_role("table", name="Fields of WorkerDetail")).to_contain_text("concurrency")
        await page.get_by_label("Search by path").fill("")
        for which in await page.locator("details.operation").all():
            await which.evaluate("(node) => { node.open = true; }")
        await expect(page.locator("details.operation h3", has_text="Responses")).to_have_count(operations)
