"""Every screen in a real browser, over a real executor and worker."""

import json
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.integration.dashboard.axe import faults_of
from tests.integration.dashboard.browser import DEADLINE_MILLISECONDS, watched_page
from tests.integration.dashboard.conftest import TOKEN
from tests.integration.webhooks.receiver import receiving
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
    await expect(one).to_contain_text("0 of 1")
    await expect(page.locator("tbody tr")).to_have_count(2)

    button = page.get_by_role("button", name="Pause screen.one")
    await button.focus()
    await env.submit_many([{"action_ref": "screen.one"}] * 4)
    await expect(one).to_contain_text("1 of 1")
    await expect(button).to_be_focused()
    await expect(one.locator("td[data-label=Waiting]")).to_have_text("3")
    await expect(one).not_to_contain_text("no worker")
    await expect(two).to_contain_text("no worker")

    await button.click()
    await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    await expect(page.get_by_role("button", name="Resume screen.one")).to_be_visible()
    assert (await env.stats("screen.one"))["paused"]

    await page.get_by_role("button", name="Limit of screen.two").click()
    await page.get_by_label("Maximum concurrency").fill("9")
    await page.get_by_role("button", name="Change limit").click()
    await expect(two).to_contain_text("0 of 9")

    await page.get_by_role("button", name="Queue").click()
    await expect(page.locator("tbody tr").first).to_contain_text("screen.one")
    assert "sort=name" in page.url
    await page.get_by_label("Search by action or key").fill("two")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(two).to_be_visible()


async def test_a_conflicting_limit_is_rejected_in_the_dialog_and_escape_closes_it(
    page: Page, env: Environment
) -> None:
    await env.put("refusing", max_concurrent=2)
    await page.goto("/#/queues/refusing")
    await page.get_by_role("button", name="Limit").click()
    limit = page.get_by_label("Maximum concurrency")
    await limit.fill("3")
    await env.patch("refusing", max_concurrent=5)
    await page.get_by_role("button", name="Change limit").click()
    await expect(page.get_by_role("dialog").get_by_role("alert")).not_to_be_empty()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert (await env.stats("refusing"))["max_concurrent"] == 5


async def test_a_queue_shows_holders_waiting_executions_and_changes(page: Page, env: Environment) -> None:
    await env.put("lined.up", max_concurrent=1, pool="empty", entrypoint="tests.e2e.actions:noop")
    first, second, third = await env.submit_many([{"action_ref": "lined.up"}] * 3)
    await page.goto("/#/queues/lined.up")
    holders = page.get_by_role("table", name="Slot holders").locator("tbody tr")
    waiting_rows = page.get_by_role("table", name="Waiting executions, in order").locator("tbody tr")
    await expect(holders).to_have_count(1)
    await expect(holders).to_contain_text(f"#{first}")
    await expect(waiting_rows.nth(0)).to_contain_text(f"#{second}")
    await expect(waiting_rows.nth(1)).to_contain_text(f"#{third}")
    await expect(page.locator("p.why")).to_contain_text("2 waiting: 2 for a slot")
    await env.cancel(second)
    await expect(waiting_rows).to_have_count(1)
    await env.patch("lined.up", max_concurrent=7)
    await page.get_by_text("Changes", exact=True).click()
    changes = page.get_by_role("table", name="Changes, newest first").locator("tbody tr")
    await expect(changes.first).to_contain_text("max_concurrent: 7")


async def test_an_execution_shows_why_it_waits_until_it_ends_and_is_retried(
    page: Page, env: Environment, tmp_path: Path
) -> None:
    door = tmp_path / "open"
    holder, waiting = await env.submit_many([{"action_ref": "gate", "parameters": {"file": str(door)}}] * 2)
    await env.until_status(holder, "running")
    await page.goto(f"/#/executions/{waiting}")
    await expect(page.locator(".why")).to_contain_text(
        "Position 1 of 1 in the queue. 1 of 1 slots in use, held by"
    )
    await expect(page.locator(".why").get_by_role("link", name=f"#{holder}")).to_be_visible()
    door.touch()
    await expect(page.locator("h1 .badge")).to_have_text("completed")
    await expect(page.locator(".timeline li.done")).to_have_count(5)
    await expect(page.get_by_role("table", name="Attempts").locator("tbody tr")).to_have_count(1)
    await page.get_by_role("button", name="Retry").click()
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


async def test_an_execution_shows_its_gates_and_a_resource_its_holders(page: Page, env: Environment) -> None:
    assert (await env.http.put("/resources/autocad", json={"capacity": 5})).is_success
    await env.put(
        "drawn", pool="empty", entrypoint="tests.e2e.actions:noop", uses=[{"resource": "autocad", "units": 2}]
    )
    first, second, waiting = await env.submit_many([{"action_ref": "drawn"}] * 3)
    await page.goto(f"/#/executions/{waiting}")
    await expect(page.locator(".why")).to_contain_text(
        "The resource autocad: the execution needs 2 units, 1 of 5 free,"
        f" held by #{first} (2), #{second} (2). Position 1."
    )
    gates = page.get_by_role("table", name="Gates, in order").locator("tbody tr")
    await expect(gates).to_have_count(2)
    await expect(gates.nth(1)).to_contain_text("waits here")
    await gates.get_by_role("link", name="autocad").click()
    await expect(page.get_by_role("table", name="Holders of units").locator("tbody tr")).to_have_count(2)
    waiting_rows = page.get_by_role("table", name="Waiting executions, in order").locator("tbody tr")
    await expect(waiting_rows).to_have_count(1)
    await expect(waiting_rows).to_contain_text(f"#{waiting}")
    for execution_id in (waiting, second, first):
        await env.http.post(f"/executions/{execution_id}/cancel")


async def test_values_are_shown_as_text(page: Page, env: Environment) -> None:
    await env.put(
        "hostile", max_concurrent=1, concurrency_key="/who", pool="empty", entrypoint="tests.e2e.actions:noop"
    )
    execution_id = await env.submit("hostile", parameters={"who": HOSTILE}, metadata={HOSTILE: HOSTILE})
    for path in (
        f"/#/executions/{execution_id}",
        "/#/executions?action_ref=hostile",
        "/#/queues?search=hostile",
    ):
        await page.goto(path)
        await expect(page.locator("main")).to_contain_text(HOSTILE)
    await page.locator("tbody a").click()
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


async def test_back_forward_reload_and_another_session_show_the_same_page_of_executions(
    page: Page, browser: Browser, env: Environment
) -> None:
    await env.put("paged", max_concurrent=0)
    ids = await env.submit_many([{"action_ref": "paged"}] * 120)
    newest, second, third = (f"#{ids[at]}" for at in (-1, -51, -101))
    first_row = page.locator("tbody tr").first
    here = page.locator(".pages")
    await page.goto("/#/executions?action_ref=paged")
    await expect(first_row).to_contain_text(newest)
    await page.get_by_role("button", name="Next").click()
    await expect(first_row).to_contain_text(second)
    await page.get_by_role("button", name="Next").click()
    await expect(first_row).to_contain_text(third)
    await expect(here).to_have_text("Page 3")
    await page.reload()
    await expect(first_row).to_contain_text(third)
    await expect(here).to_have_text("Page 3")

    await page.go_back()
    await expect(first_row).to_contain_text(second)
    await expect(here).to_have_text("Page 2")
    await page.go_forward()
    await expect(first_row).to_contain_text(third)
    await page.get_by_role("button", name="Previous").click()
    await expect(first_row).to_contain_text(second)
    async with watched_page(browser, env.system.http_url, token=TOKEN) as other:
        await other.goto(page.url)
        await expect(other.locator("tbody tr").first).to_contain_text(second)
        await other.get_by_role("button", name="First page").click()
        await expect(other.locator("tbody tr").first).to_contain_text(newest)

    # A filter is an entry too, and begins at the first page.
    await page.get_by_role("button", name="Failed", exact=True).click()
    await expect(page.get_by_text("No matching executions.")).to_be_visible()
    assert "cursor" not in page.url
    await page.go_back()
    await expect(first_row).to_contain_text(second)
    await expect(page.get_by_role("button", name="All", exact=True)).to_have_attribute("aria-pressed", "true")
    await page.get_by_role("link", name=second).click()
    await expect(page.locator("h1")).to_contain_text(second)
    await page.go_back()
    await expect(first_row).to_contain_text(second)
    await expect(here).to_have_text("Page 2")


_COLOURED = """() => {
  const probe = document.body.appendChild(document.createElement("i"));
  const colourOf = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const words = ["good", "warm", "bad", "accent"];
  const colours = words.flatMap((word) => [colourOf(word), colourOf(`${word}-ground`)]);
  probe.remove();
  const nodes = [...document.querySelectorAll("main .cancelled, main .ended")];
  const styles = nodes.flatMap((node) => [getComputedStyle(node), getComputedStyle(node, "::before")]);
  const isColoured = ({ color, backgroundColor }) =>
    colours.includes(color) || colours.includes(backgroundColor);
  return [nodes.length, styles.filter(isColoured).length];
}"""


async def test_an_execution_is_cancelled_with_a_reason_and_is_grey_from_then_on(
    page: Page, env: Environment
) -> None:
    await env.put("greyed", max_concurrent=0)
    execution_id = await env.submit("greyed")
    await page.goto(f"/#/executions/{execution_id}")
    await expect(page.locator(".why")).to_contain_text("The limit is 0: nothing starts.")
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_label("Reason").fill("no longer needed")
    await page.get_by_role("button", name="Cancel execution").click()
    await expect(page.locator("h1 .badge")).to_have_text("cancelled")
    assert "no longer needed" in (await env.get(execution_id))["error"]["message"]
    # The badge, the last step, and the error.
    await expect(page.locator("main .ended")).to_contain_text("no longer needed")
    assert await page.evaluate(_COLOURED) == [3, 0]
    await page.goto("/#/executions?action_ref=greyed")
    # The badge and the error.
    await expect(page.locator("main .cancelled")).to_have_count(2)
    assert await page.evaluate(_COLOURED) == [2, 0]
    # What failed is not, or this test finds nothing.
    failed = await env.submit("scripted", parameters={"steps": ["PERMANENT"]})
    await env.ended(failed)
    await page.goto(f"/#/executions/{failed}")
    await expect(page.locator("h1 .badge")).to_have_text("failed")
    found = await page.evaluate(_COLOURED.replace(".cancelled", ".failed"))
    assert found[1] > 0


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


async def test_a_replay_continues_until_nothing_is_left_and_says_what_was_refused(
    page: Page, env: Environment
) -> None:
    await env.put("replayed", max_concurrent=0)
    await env.history.rows(
        "INSERT INTO ledger.dead_letter (fingerprint, code, error, exchange, routing_key,"
        " original_routing_key, type, tries, died_at, stored_at, headers, body, body_bytes, stored_bytes)"
        " SELECT md5(n::text), 'cut_or_not', 'e', 'executions', 'x', 'execution.requested',"
        " 'execution.requested', 1, now() + n * interval '1 ms', now(), '{}',"
        ' \'{"action_ref": "replayed"}\', CASE n WHEN 1 THEN 99999 ELSE 26 END, 26'
        " FROM generate_series(1, 5) n"
    )
    calls = 0

    async def at_most_two(route: Route) -> None:
        nonlocal calls
        body = json.loads(route.request.post_data or "")
        if body.get("dry_run"):
            await route.continue_()
            return
        calls += 1
        await route.continue_(post_data=json.dumps({**body, "limit": min(2, body["limit"])}))

    await page.route("**/dead-letters/replay", at_most_two)
    await page.goto("/#/dead-letters?code=cut_or_not")
    await expect(page.locator("tbody tr")).to_have_count(5)
    await page.get_by_role("button", name="Replay all with this code").click()
    await page.get_by_role("dialog").get_by_role("button", name="Replay").click()
    result = page.locator("p.result")
    await expect(result).to_contain_text("4 replayed, 1 refused: ")
    await expect(result).to_contain_text("only the beginning of its body of 99999 bytes is stored")
    assert calls == 4

    async def all_are_admitted() -> bool:
        return bool((await env.stats("replayed"))["total_enqueued"] == 4)

    await until(all_are_admitted, "those that were replayed")
    await page.get_by_role("button", name="Purge all with this code").click()
    await page.get_by_role("dialog").get_by_role("button", name="Purge").click()
    await expect(result).to_have_text("1 purged.")
    await env.stop_running()


async def test_a_failed_webhook_shows_its_error_and_is_replayed(page: Page, env: Environment) -> None:
    async with receiving() as receiver:
        receiver.says("410 Gone", b"not here")
        receiver.says("200 OK")
        execution_id = await env.submit("noop", callback_url=receiver.url)
        await page.goto("/#/webhooks")
        row = page.locator("tbody tr").filter(has_text=f"#{execution_id}")
        await expect(row).to_contain_text("failed")
        await expect(row).to_contain_text("not here")
        await expect(row).to_contain_text(receiver.url)
        await row.get_by_role("button", name="Replay").click()
        await page.get_by_role("dialog").get_by_role("button", name="Replay").click()
        await expect(row).to_contain_text("delivered")
        await expect(page.locator("p.result")).to_have_text("1 replayed.")
        assert len(receiver.received) == 2
    await page.get_by_role("checkbox", name="failed").check()
    await expect(page.get_by_text("No webhooks in this state.")).to_be_visible()
    await page.reload()
    await expect(page.get_by_role("checkbox", name="failed")).to_be_checked()
