"""Every screen in a real browser, over a real executor and worker."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.integration.dashboard.axe import faults_of
from tests.integration.dashboard.browser import DEADLINE_MILLISECONDS, watched_page
from tests.integration.dashboard.conftest import TOKEN
from tests.support.environment import Environment
from tests.support.traffic import submit, until

pytestmark = pytest.mark.asyncio(loop_scope="package")
expect.set_options(timeout=DEADLINE_MILLISECONDS)

HOSTILE = "<img src=x onerror=document.title='hostile'> & <b>bold</b>"


async def test_the_page_prompts_once_for_a_valid_token(browser: Browser, env: Environment) -> None:
    async with watched_page(browser, env.system.http_url) as page:
        await page.goto("/")
        prompt = page.get_by_role("dialog", name="Token required")
        await prompt.get_by_label("Token").fill("wrong")
        await prompt.get_by_role("button", name="Continue").click()
        await expect(prompt).to_contain_text("Invalid token")
        assert await faults_of(page) == []
        await prompt.get_by_label("Token").fill(TOKEN)
        await prompt.get_by_role("button", name="Continue").click()
        await expect(page.locator("#live")).to_have_text("Live")
        await page.reload()
        await expect(page.locator("#live")).to_have_text("Live")
        await expect(prompt).to_have_count(0)
        assert TOKEN not in page.url


async def test_queues_are_updated_searched_paused_and_limited(page: Page, env: Environment) -> None:
    await env.put("screen.one", max_concurrent=1, pool="empty", entrypoint="tests.e2e.actions:noop")
    await env.put("screen.two", max_concurrent=4, pool="unserved")
    await page.goto("/#/queues?search=screen")
    one, two = (page.get_by_role("row").filter(has_text=f"screen.{which}") for which in ("one", "two"))
    # Idle actions are folded, unless nothing else is found.
    await expect(page.get_by_role("table", name="Idle actions").locator("tbody tr")).to_have_count(2)
    await expect(one).to_contain_text("0 of 1")
    await expect(two).to_contain_text("no worker")

    await env.submit_many([{"action_ref": "screen.one"}] * 2)
    busy = page.get_by_role("table", name="Queues by action").locator("tbody tr")
    await expect(busy).to_have_count(1)
    await expect(busy).to_contain_text("1 of 1")
    menu = busy.get_by_role("button", name="Actions for screen.one")
    await menu.focus()
    await env.submit_many([{"action_ref": "screen.one"}] * 2)
    await expect(busy.locator("td[data-label=Waiting]")).to_have_text("3")
    await expect(busy.locator("td[data-label=Why]")).to_have_text("3 wait: the limit")
    await expect(menu).to_be_focused()

    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Pause screen.one").click()
    await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    await expect(busy).to_contain_text("3 wait: paused")
    await expect(menu).to_be_focused()
    assert (await env.stats("screen.one"))["paused"]

    await page.get_by_role("button", name="Actions for screen.two").click()
    await page.get_by_role("button", name="Limit of screen.two").click()
    await page.get_by_label("Maximum concurrency").fill("9")
    await page.get_by_role("button", name="Change limit").click()
    await expect(two).to_contain_text("0 of 9")

    await page.get_by_role("button", name="Action", exact=True).first.click()
    await expect(page.locator("tbody tr").first).to_contain_text("screen.one")
    assert "sort=name" in page.url
    await page.get_by_label("Search by action or key").fill("two")
    await expect(busy).to_have_count(0)
    await expect(two).to_be_visible()


async def test_the_keys_of_an_action_are_folded_in_its_group(page: Page, env: Environment) -> None:
    await env.put("folded", max_concurrent=0, concurrency_key="/key")
    keys = [f"key-{number:02}" for number in range(23)]
    await env.submit_many([{"action_ref": "folded", "parameters": {"key": key}} for key in keys])
    await page.goto("/#/queues?search=folded&sort=name")
    rows = page.get_by_role("table", name="Queues by action").locator("tbody tr")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("23 keys")
    await expect(rows).to_contain_text("23 wait: the limit")
    await page.get_by_role("button", name="Keys of folded").click()
    await expect(rows).to_have_count(22)
    await expect(rows.nth(1)).to_contain_text("key-00")
    await expect(rows.last).to_contain_text("1 to 20 of 23 keys")
    await page.get_by_role("button", name="Next keys of folded").click()
    await expect(rows).to_have_count(5)
    await expect(rows.nth(1)).to_contain_text("key-20")
    await page.get_by_role("button", name="Keys of folded", exact=True).click()
    await expect(rows).to_have_count(1)


async def test_a_change_of_a_definition_is_previewed_and_made(page: Page, env: Environment) -> None:
    await env.put("edited", max_concurrent=4, pool="empty", entrypoint="tests.e2e.actions:noop", timeout=90)
    await env.submit_many([{"action_ref": "edited"}] * 2)
    await page.goto("/#/queues/edited")
    await expect(page.locator(".panel").first).to_contain_text("2 of 4 slots in use")
    await page.get_by_role("button", name="Edit", exact=True).click()
    dialog = page.get_by_role("dialog", name="Edit edited")
    preview = dialog.get_by_role("status", name="What changes")
    await expect(preview).to_contain_text("Nothing yet.")
    await dialog.get_by_label("Limit", exact=True).fill("2")
    await expect(preview).to_contain_text(
        "Limit: 4 → 2 2 running executions go on. Nothing new starts until fewer than 2 run."
    )
    await expect(dialog.get_by_label("Timeout")).to_have_value("90s")
    rate = dialog.get_by_label("Rate of starts")
    await rate.fill("ten")
    await expect(preview).to_contain_text('"ten": expected 10 per 1s')
    await dialog.get_by_role("button", name="Save changes").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("expected 10 per 1s")
    await rate.fill("10 per 1s")
    await dialog.get_by_label("Wait before a retry", exact=True).fill("5s")
    await dialog.get_by_role("button", name="Save changes").click()
    await expect(dialog).to_have_count(0)
    action = (await env.http.get("/actions/edited")).json()
    assert (action["max_concurrent"], action["rate"], action["timeout"]) == (2, {"starts": 10, "per": 1}, 90)
    assert (action["retry"]["delay"], action["retry"]["max_attempts"]) == (5, 1)
    await expect(page.locator("main")).to_contain_text("10 per 1 s")
    await env.stop_running()


async def test_a_key_has_its_own_limit_on_every_screen_and_its_row_changes_it(
    page: Page, env: Environment
) -> None:
    await env.put(
        "keyed", max_concurrent=2, concurrency_key="/key", pool="empty", entrypoint="tests.e2e.actions:noop"
    )
    assert (await env.http.put("/actions/keyed/keys/big", json={"max_concurrent": 4})).is_success
    await env.submit_many([{"action_ref": "keyed", "parameters": {"key": "big"}}] * 5)
    await page.goto("/#/queues?search=big")
    # A search for a key opens its group.
    row = page.get_by_role("row").filter(has_text="big")
    await expect(row).to_contain_text("4 of 4")
    menu = row.get_by_role("button", name="Actions for key big of keyed")
    await menu.click()
    await row.get_by_role("button", name="Pause all keys of keyed").click()
    await expect(page.get_by_role("dialog", name="Pause all keys of keyed?")).to_be_visible()
    await page.keyboard.press("Escape")
    await menu.click()
    await page.get_by_role("button", name="Limit of key big of keyed").click()
    dialog = page.get_by_role("dialog", name="Settings of key big")
    await expect(dialog).to_contain_text("Current limit: 4. Slots in use: 4.")
    await dialog.get_by_label("Maximum concurrency of this key").fill("5")
    await dialog.get_by_role("button", name="Save").click()
    await expect(row).to_contain_text("5 of 5")
    assert (await env.stats("keyed"))["max_concurrent"] == 2
    await page.goto("/#/queues/keyed?key=big")
    await expect(page.locator(".panel")).to_contain_text("5 of 5 slots in use")
    await page.goto("/#/queues/keyed")
    keys = page.get_by_role("table", name="Longest queues by key")
    await expect(keys.get_by_role("row").filter(has_text="big")).to_contain_text("5 of 5")
    await page.get_by_role("button", name="Limit", exact=True).click()
    await expect(page.get_by_role("dialog", name="Limit of keyed")).to_contain_text(
        "Current limit: 2. Slots in use over all keys: 5."
    )
    await page.keyboard.press("Escape")
    await env.stop_running()


async def test_slots_that_are_held_while_waiting_are_in_use_on_every_screen(
    page: Page, env: Environment
) -> None:
    for name, capacity, rank in (("held-desk", 9, 1), ("held-licence", 1, 2)):
        resource = {"capacity": capacity, "rank": rank}
        assert (await env.http.put(f"/resources/{name}", json=resource)).is_success
    uses = ["held-desk", "held-licence"]
    await env.put(
        "held.gates", max_concurrent=3, uses=uses, pool="empty", entrypoint="tests.e2e.actions:noop"
    )
    await env.submit_many([{"action_ref": "held.gates"}] * 5)
    await page.goto("/#/queues?search=held.gates")
    await expect(page.get_by_role("row").filter(has_text="held.gates")).to_contain_text("3 of 3")
    await page.goto("/#/queues/held.gates")
    await expect(page.locator(".panel").first).to_contain_text("3 of 3 slots in use")
    await expect(page.get_by_role("table", name="Slot holders").locator("tbody tr")).to_have_count(3)
    await env.stop_running()


async def test_a_dialog_closes_when_another_screen_is_opened(page: Page, env: Environment) -> None:
    await env.put("left", max_concurrent=1, pool="empty", entrypoint="tests.e2e.actions:noop")
    await page.goto("/#/queues?search=left")
    await page.get_by_role("button", name="Actions for left").click()
    await page.get_by_role("button", name="Limit of left").click()
    await expect(page.get_by_role("dialog", name="Limit of left")).to_be_visible()
    await page.evaluate("location.hash = '#/workers'")
    await expect(page.get_by_role("heading", name="Workers")).to_be_visible()
    await expect(page.locator("dialog")).to_have_count(0)


async def test_an_execution_shows_why_it_waits_until_it_ends_and_is_retried(
    page: Page, env: Environment, tmp_path: Path
) -> None:
    door = tmp_path / "open"
    holder, waiting = await env.submit_many([{"action_ref": "gate", "parameters": {"file": str(door)}}] * 2)
    await env.until_status(holder, "running")
    await page.goto(f"/#/executions/{waiting}")
    why = page.locator(".why")
    await expect(why).to_contain_text("Waits: 1 of 1 slots in use, held by")
    await expect(why).to_contain_text("Position 1 of 1 in the queue.")
    await expect(why).to_contain_text("executor actions limit gate NUMBER")
    await expect(why.get_by_role("link", name=f"#{holder}")).to_be_visible()
    steps = page.get_by_role("table", name="On the way to its start").locator("tbody tr")
    await expect(steps.first).to_contain_text("waits here")
    await expect(steps.first.locator(".badge")).to_have_text("blocker")
    await expect(steps.nth(1)).to_contain_text("not reached")
    door.touch()
    await expect(page.locator("h1 .badge")).to_have_text("completed")
    await expect(page.locator(".timeline li.done")).to_have_count(5)
    await expect(page.get_by_role("table", name="Attempts").locator("tbody tr")).to_have_count(1)
    await page.get_by_role("button", name="Retry", exact=True).click()
    await page.get_by_role("button", name="Retry execution").click()
    await expect(page.locator("h1")).not_to_contain_text(f"#{waiting}")
    await expect(page.get_by_role("link", name=f"#{waiting}")).to_be_visible()
    await expect(page.locator("h1 .badge")).to_have_text("completed")
    await page.goto(f"/#/executions/{waiting}")
    await page.get_by_text("Changes", exact=True).click()
    changes = page.get_by_role("table", name="Changes, newest first").locator("tbody tr")
    await expect(changes).to_have_count(1)
    await expect(changes.first).to_contain_text("retried")
    await expect(changes.first).to_contain_text("dashboard, 127.0.0.1")


async def test_values_are_shown_as_text(page: Page, env: Environment) -> None:
    await env.put(
        "hostile", max_concurrent=1, concurrency_key="/who", pool="empty", entrypoint="tests.e2e.actions:noop"
    )
    execution_id = await env.submit("hostile", parameters={"who": HOSTILE}, metadata={HOSTILE: HOSTILE})
    for path in (
        f"/#/executions/{execution_id}",
        "/#/executions?action_ref=hostile",
        "/#/queues?search=onerror",
    ):
        await page.goto(path)
        await expect(page.locator("main")).to_contain_text(HOSTILE)
    await page.locator("tbody a").filter(has_text=HOSTILE).first.click()
    await expect(page.locator("h1")).to_contain_text(HOSTILE)
    assert await page.locator("main img, main b").count() == 0
    assert await page.title() != "hostile"


async def test_executions_are_filtered_and_the_address_keeps_the_filters(
    page: Page, env: Environment
) -> None:
    await env.put("listed", max_concurrent=1, pool="empty", entrypoint="tests.e2e.actions:noop")
    held, queued = await env.submit_many(
        [{"action_ref": "listed"}, {"action_ref": "listed", "metadata": {"order": "4711"}, "priority": 5}]
    )
    await page.goto("/#/executions?action_ref=listed")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(2)
    await page.get_by_role("checkbox", name="queued").check()
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text(f"#{queued}")
    await page.get_by_role("checkbox", name="queued").uncheck()
    await page.get_by_label("Metadata").fill("order:4711")
    await page.get_by_label("Metadata").press("Tab")
    await expect(rows).to_have_count(1)
    assert "metadata=order%3A4711" in page.url
    await page.reload()
    await expect(rows).to_contain_text(f"#{queued}")
    await page.get_by_label("Metadata").fill("")
    await page.get_by_label("Metadata").press("Tab")
    await page.get_by_label("Priority").select_option(label="3")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text(f"#{held}")
    await page.goto(f"/#/executions/{queued}")
    await expect(page.locator("dl.metrics div").filter(has_text="Priority")).to_contain_text("5 (last)")
    await page.get_by_role("link", name="Executions").first.click()
    await page.get_by_label("Open by ID").fill(f"#{held}")
    await page.get_by_label("Open by ID").press("Enter")
    await expect(page.locator("h1")).to_contain_text(f"#{held}")


async def test_dead_letters_are_read_replayed_edited_and_purged(page: Page, env: Environment) -> None:
    await page.goto("/#/dead-letters")
    await expect(page.get_by_text("No dead letters.")).to_be_visible()
    await submit(env.amqp_url, [{"action_ref": "not.yet"}, b'{"action_ref": "not.yet"', b"{ broken"])
    rows = page.locator("tbody tr")
    # They appear without a reload.
    await expect(rows).to_have_count(3, timeout=20_000)
    letter = rows.filter(has_text="unknown action")
    await letter.locator("th button").click()
    await expect(page.get_by_role("dialog")).to_contain_text("not.yet")
    await page.get_by_role("button", name="Close").click()

    await env.put("not.yet", max_concurrent=1)
    await letter.get_by_role("checkbox").check()
    await page.get_by_role("button", name="Replay 1 selected").click()
    await page.get_by_role("dialog").get_by_role("button", name="Replay").click()
    await expect(rows).to_have_count(2)
    await rows.first.locator("th button").click()
    await page.get_by_role("button", name="Edit and replay").click()
    await page.get_by_role("textbox", name="Body").fill('{"action_ref": "not.yet"}')
    await page.get_by_role("dialog").get_by_role("button", name="Replay").click()
    await expect(rows).to_have_count(1)
    await page.get_by_role("button", name="Purge all").click()
    await page.get_by_role("dialog").get_by_role("button", name="Purge").click()
    await expect(page.get_by_text("No dead letters.")).to_be_visible()

    async def both_are_admitted() -> bool:
        return bool((await env.stats("not.yet"))["total_enqueued"] == 2)

    await until(both_are_admitted, "both that were replayed")
