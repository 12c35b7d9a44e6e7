"""Executions on the dashboard: retries with other parameters, filters by name, and logs that are followed."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from tests.integration.dashboard.browser import DEADLINE_MILLISECONDS
from tests.support.environment import Environment

pytestmark = pytest.mark.asyncio(loop_scope="package")
expect.set_options(timeout=DEADLINE_MILLISECONDS)

SCHEMA = {
    "properties": {
        "customer": {"type": "string"},
        "amount": {"type": "number"},
        "colour": {"enum": ["red", "green"]},
        "due": {"type": "string", "format": "date-time"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "pin": {"type": "string", "format": "password", "writeOnly": True},
        "token": {"type": "string"},
    },
    "required": ["customer"],
}
GIVEN = {
    "customer": "a",
    "amount": 1.5,
    "colour": "blue",
    "due": "2030-07-01T10:30:05.123456Z",
    "note": None,
    "pin": "1234",
    "token": "**********",
}


async def ended(env: Environment, ref: str, **fields: Any) -> int:
    """Submit an execution that ends before it starts."""
    execution_id = await env.submit(ref, **fields)
    await env.cancel(execution_id)
    return execution_id


async def test_an_execution_is_retried_with_other_parameters_and_its_secrets_are_asked_for(
    page: Page, env: Environment
) -> None:
    await env.put("edited", max_concurrent=0)
    one = await ended(env, "edited", parameters=GIVEN)
    await env.put("edited", max_concurrent=0, parameters_schema=SCHEMA)
    await page.goto(f"/#/executions/{one}")
    await page.get_by_role("button", name="Edit and retry").click()
    dialog = page.get_by_role("dialog", name=f"Retry execution {one} with other parameters")
    send = dialog.get_by_role("button", name="Retry execution")
    for name in ("pin", "token"):
        await expect(dialog.get_by_label(name)).to_have_value("")
        await expect(dialog.get_by_label(name)).to_have_accessible_description(
            "String (password). Secret, so not copied; give it again."
            if name == "pin"
            else "String. Secret, so not copied; give it again."
        )
    await expect(dialog.get_by_label("pin")).to_have_attribute("type", "password")
    await dialog.get_by_label("customer").fill("b")
    await send.click()
    await expect(dialog.get_by_role("alert")).to_have_text("Correct pin, token.")
    await dialog.get_by_label("pin").fill("5678")
    await dialog.get_by_label("token").fill("**********")
    await send.click()
    # What the form does not check comes back beside its field.
    await expect(dialog).to_contain_text("********** is the mask of a secret")
    await dialog.get_by_label("token").fill("t")
    await dialog.get_by_label("colour").select_option(label="green")
    await send.click()
    await expect(page.locator("h1 .badge")).to_have_text("queued")
    await expect(page.locator(".metrics").first).to_contain_text(f"#{one}")
    again = await env.get(int(page.url.rpartition("/")[2]))
    edited = {"customer": "b", "colour": "green", "pin": "5678", "token": "t"}
    assert (again["parameters"], again["retry_of"]) == ({**GIVEN, **edited}, one)
    log = (await env.http.get("/audit-log", params={"subject": one, "verb": "retried"})).json()["items"]
    changed = sorted(edited)
    assert [each["after"] for each in log] == [{"retry_id": again["id"], "changed_parameters": changed}]
    await env.cancel(again["id"])


async def test_parameters_without_a_field_are_edited_as_json(page: Page, env: Environment) -> None:
    await env.put("edited.freely", max_concurrent=0)
    given = {"customer": "a", "more": [1, {"big": 12345678901234567890}], "pin": "**********"}
    one = await ended(env, "edited.freely", parameters=given)
    await page.goto(f"/#/executions/{one}")
    await page.get_by_role("button", name="Edit and retry").click()
    dialog = page.get_by_role("dialog")
    parameters = dialog.get_by_label("Parameters")
    await expect(parameters).to_have_accessible_description(
        "A JSON object; passed to the action by name. Secret, so not copied; give it again: pin."
    )
    text = await parameters.input_value()
    assert json.loads(text) == {"customer": "a", "more": given["more"]}
    await parameters.fill(text.replace('"a"', '"b"'))
    await dialog.get_by_role("button", name="Retry execution").click()
    await expect(page.locator("h1 .badge")).to_have_text("queued")
    again = await env.get(int(page.url.rpartition("/")[2]))
    assert again["parameters"] == {"customer": "b", "more": given["more"]}
    await env.cancel(again["id"])


async def test_a_search_is_saved_by_name_and_removed_by_keyboard(page: Page, env: Environment) -> None:
    await env.put("saved", max_concurrent=0)
    first, second = await env.submit("saved"), await env.submit("saved")
    await page.goto("/#/executions?action_ref=saved")
    filters = page.get_by_role("navigation", name="Filters")
    ids = page.locator("tbody th a")
    await expect(ids).to_have_text([f"#{second}", f"#{first}"])
    await page.get_by_label("Order").select_option(label="Oldest first")
    await expect(ids).to_have_text([f"#{first}", f"#{second}"])
    await filters.get_by_role("button", name="Save this search…").click()
    dialog = page.get_by_role("dialog", name="Save this search")
    await dialog.get_by_label("Name").fill("mine")
    await dialog.get_by_role("button", name="Save").click()
    mine = filters.get_by_role("link", name="mine", exact=True)
    await expect(mine).to_have_attribute("href", "#/executions?action_ref=saved&order=oldest")
    await expect(mine).to_have_attribute("aria-current", "page")

    for name, chosen in (
        ("Failed today", "Failed"),
        ("Waiting, oldest first", "Waiting"),
        ("Running, oldest first", "Running"),
    ):
        await filters.get_by_role("link", name=name).click()
        await expect(filters.get_by_role("link", name=name)).to_have_attribute("aria-current", "page")
        await expect(page.get_by_role("button", name=chosen, exact=True)).to_have_attribute(
            "aria-pressed", "true"
        )
    await page.reload()
    await mine.click()
    await expect(ids).to_have_text([f"#{first}", f"#{second}"])
    await mine.focus()
    await page.keyboard.press("Tab")
    await expect(filters.get_by_role("button", name="Remove the filter mine")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(mine).to_have_count(0)
    await page.reload()
    await expect(filters.get_by_role("link", name="Failed today")).to_be_visible()
    await expect(mine).to_have_count(0)
    await env.cancel(first, second)


class Logs:
    """The answers of the API about the logs of an execution."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, str]] = []
        self.has_ended = False

    async def answer(self, route: Route) -> None:
        cursor = int(route.request.url.partition("cursor=")[2] or 0)
        items = [{"attempt": attempt, "at": None, "text": text} for attempt, text in self.pieces[cursor:]]
        after = None if self.has_ended else str(len(self.pieces))
        await route.fulfill(json={"items": items, "next_cursor": after, "ended": self.has_ended})


async def test_logs_are_followed_paused_copied_and_saved(
    page: Page, env: Environment, tmp_path: Path
) -> None:
    await env.put("followed", max_concurrent=0)
    one, logs = await env.submit("followed"), Logs()
    logs.pieces.append((1, "first\n" * 200))
    await page.route("**/executions/*/logs*", logs.answer)
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.goto(f"/#/executions/{one}")
    log, part = page.get_by_role("log", name="Logs"), page.locator("section.logs")
    state = part.get_by_role("status")
    await expect(log).to_contain_text("first")
    await expect(state).to_have_text("Following")
    to_end = "(node) => node.scrollHeight - node.clientHeight - node.scrollTop"
    assert await log.evaluate(to_end) < 5
    # Where one reads above the end, the page does not move.
    await log.evaluate("(node) => { node.scrollTop = 0; }")
    logs.pieces.append((1, "second\n"))
    await expect(log).to_contain_text("second")
    assert await log.evaluate("(node) => node.scrollTop") == 0
    await part.get_by_role("button", name="Jump to end").click()
    assert await log.evaluate(to_end) < 5

    await part.get_by_role("button", name="Pause").click()
    await expect(state).to_have_text("Paused")
    logs.pieces.append((2, "third\n"))
    async with page.expect_download() as saved:
        await part.get_by_role("button", name="Download").click()
    await (await saved.value).save_as(tmp_path / "saved")
    assert (await saved.value).suggested_filename == f"execution-{one}.log"
    whole = "first\n" * 200 + "second\n--- attempt 2 ---\nthird\n"
    assert (tmp_path / "saved").read_text() == whole
    await expect(log).not_to_contain_text("third")
    await part.get_by_role("button", name="Continue").click()
    await expect(log).to_contain_text("third")
    assert await log.evaluate(to_end) < 5
    await part.get_by_role("button", name="Copy").click()
    await expect(page.locator("#spoken")).to_have_text("Copied")
    assert await page.evaluate("() => navigator.clipboard.readText()") == whole
    wrap = part.get_by_role("button", name="Wrap")
    await wrap.click()
    await expect(wrap).to_have_attribute("aria-pressed", "false")
    await expect(log).to_have_css("white-space", "pre")

    # However much comes, the page keeps a bounded part.
    logs.pieces += [(2, f"{n}" * 100_000) for n in range(1, 8)]
    logs.has_ended = True
    await expect(state).to_have_text("Complete")
    await expect(part).to_contain_text("The beginning is not shown")
    assert len(await log.text_content() or "") == 500_000
    await expect(part.get_by_role("button", name="Pause")).to_be_hidden()
    await env.cancel(one)


async def test_an_ended_execution_shows_its_stored_logs(page: Page, env: Environment) -> None:
    one = await env.submit("scripted", parameters={"steps": ["PERMANENT"]})
    await env.ended(one)
    await page.goto(f"/#/executions/{one}")
    await expect(page.get_by_role("log", name="Logs")).to_contain_text("as the script says")
    await expect(page.locator("section.logs").get_by_role("status")).to_have_text("Complete")
