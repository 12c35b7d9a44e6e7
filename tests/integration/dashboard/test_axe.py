"""Every screen and every dialog by axe-core and by the Tab key."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.integration.dashboard.axe import faults_of
from tests.integration.dashboard.browser import DEADLINE_MILLISECONDS, watched_page
from tests.integration.dashboard.conftest import insert_failed_webhook, insert_letters
from tests.support.environment import Environment
from tests.support.ledger import LOST_WORKER
from turnstile.executor.dashboard.files import static_files

pytestmark = pytest.mark.asyncio(loop_scope="package")
expect.set_options(timeout=DEADLINE_MILLISECONDS)

# Marks what Tab should reach: what is shown and can be used. Notes what gets the focus and does not show it.
_WATCH_FOCUS = """() => {
  const controls = "a[href], button, input, select, textarea, summary, [tabindex='0']";
  const isReachable = (node) => !node.disabled && node.getClientRects().length > 0
    && node.checkVisibility({ visibilityProperty: true });
  for (const node of [...document.querySelectorAll(controls)].filter(isReachable)) node.dataset.tab = "left";
  window.unmarked = [];
  window.noteFocus ??= document.addEventListener("focusin", ({ target }) => {
    target.dataset.tab = "reached";
    const { outlineStyle, outlineWidth } = getComputedStyle(target);
    const isMarked = outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
    if (!isMarked) window.unmarked.push(target.outerHTML.slice(0, 150));
  }) ?? true;
}"""
_LEFT = "() => [...document.querySelectorAll('[data-tab=left]')].map((node) => node.outerHTML.slice(0, 150))"
_UNFOLD = """() => {
  for (const part of document.querySelectorAll("main details")) part.open ||= part.checkVisibility();
}"""
_STOPS_MAX = 400
_STOPS_AT_ONCE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Screens:
    """Content for every screen."""

    waiting: int
    ended: int
    worker: str
    worker_name: str
    letter: str
    token: int


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def screens(env: Environment) -> AsyncIterator[Screens]:
    fields = {"size": {"type": "integer"}, "kind": {"enum": ["a", "b"]}, "tags": {"type": "array"}}
    await env.put(
        "usable",
        max_concurrent=1,
        pool="empty",
        entrypoint="tests.e2e.actions:noop",
        submitter_keys=True,
        parameters_schema={"properties": fields},
    )
    await env.put("token.used", parameters_schema={"properties": fields})
    waiting, *_ = await env.submit_many(
        [{"action_ref": "usable", "concurrency_key": "k", "metadata": {"a": "b"}}] * 3
    )
    assert (await env.http.put("/actions/usable/keys/k", json={"weight": 2})).is_success
    failed = await env.submit("scripted", parameters={"steps": ["PERMANENT"]}, metadata={"axe": "failed"})
    await env.ended(failed)
    assert (await env.http.put("/resources/usable-licence", json={"capacity": 3})).is_success
    await env.put("usable.paused", paused=True)
    schedule = {"action_ref": "usable", "cron": "0 6 * * *", "paused": True}
    assert (await env.http.put("/schedules/usable-nightly", json=schedule)).is_success
    for path in ("resources", "pools"):
        assert (await env.http.put(f"/{path}/usable-paused", json={"paused": True})).is_success
    schedule = {"action_ref": "usable", "every": "30d"}
    assert (await env.http.put("/schedules/usable-often", json=schedule)).is_success
    # The questions about all of them have their number.
    await env.history.rows("DELETE FROM ledger.dead_letter")
    await env.history.rows("DELETE FROM ledger.webhook")
    await insert_letters(env, "unknown_action", 1)
    letter = await env.history.value("SELECT id FROM ledger.dead_letter")
    await insert_failed_webhook(env, failed)
    await env.history.rows(LOST_WORKER)
    await env.create_token(name="listed", role="read")
    token = await env.history.value("SELECT max(id) FROM ledger.api_token")
    workers = (await env.http.get("/workers", params={"state": "live"})).json()["items"]
    worker = next(each for each in workers if each["pools"] != ["empty"])
    yield Screens(
        waiting=waiting,
        ended=failed,
        worker=worker["id"],
        worker_name=worker["name"],
        letter=str(letter),
        token=token,
    )
    await env.history.rows("DELETE FROM ledger.dead_letter")
    await env.history.rows("DELETE FROM ledger.webhook WHERE execution_id = $1", failed)
    await env.history.rows("DELETE FROM ledger.worker WHERE worker_id = 'lost'")
    await env.stop_running()


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def admin(browser: Browser, env: Environment) -> AsyncIterator[Page]:
    """A page with the token of an admin: nothing is refused."""
    token = await env.create_token(name="axe", role="admin")
    async with watched_page(browser, env.system.http_url, token=token) as page:
        yield page


def addresses(screens: Screens) -> list[str]:
    return [
        "/#/",
        "/#/queues?search=usable",
        "/#/queues/usable",
        "/#/queues/usable?key=k",
        "/#/executions?action_ref=usable",
        "/#/executions?action_ref=scripted&status=failed,timeout,abandoned",
        f"/#/executions/{screens.waiting}",
        f"/#/executions/{screens.ended}",
        "/#/schedules",
        "/#/resources",
        "/#/resources/usable-licence",
        "/#/pools",
        "/#/pools/default",
        "/#/schedules",
        "/#/workers",
        "/#/workers?state=all",
        f"/#/workers/{screens.worker}",
        "/#/workers/lost",
        "/#/webhooks",
        "/#/dead-letters",
        "/#/audit-log?action_ref=usable",
        "/#/tokens",
        "/#/no-such-screen",
        "/docs",
    ]


def dialogs(screens: Screens) -> list[tuple[str, tuple[str, ...], str]]:
    """Address, buttons and title of each dialog."""
    failed = "/#/executions?action_ref=scripted&metadata=axe%3Afailed"
    one = f"webhook of execution {screens.ended}"
    found = [
        ("/#/queues/usable", "Edit", "Edit usable"),
        ("/#/queues/usable", "Submit", "Submit an execution of usable"),
        ("/#/queues/usable", "Limit", "Limit of usable"),
        ("/#/queues/usable", "Pause", "Pause usable?"),
        ("/#/queues/usable.paused", "Resume", "Resume usable.paused?"),
        ("/#/queues/usable?key=k", "Change of key k", "Settings of key k"),
        ("/#/queues/usable?key=k", "Delete settings of key k", "Delete the settings of key k?"),
        ("/#/executions?action_ref=usable", "Cancel all matching…", "Cancel 3 executions?"),
        ("/#/executions?action_ref=usable", "Retry all matching…", "Nothing to retry"),
        (failed, "Retry all matching…", "Retry 1 execution?"),
        (f"/#/executions/{screens.waiting}", "Cancel", f"Cancel execution {screens.waiting}?"),
        (f"/#/executions/{screens.ended}", "Retry", f"Retry execution {screens.ended}?"),
        (
            f"/#/executions/{screens.ended}",
            "Edit and retry",
            f"Retry execution {screens.ended} with other parameters",
        ),
        ("/#/executions?action_ref=usable", "Save this search…", "Save this search"),
        ("/#/resources/usable-licence", "Capacity", "Capacity of usable-licence"),
        ("/#/resources/usable-licence", "Pause", "Pause usable-licence?"),
        ("/#/resources/usable-paused", "Resume", "Resume usable-paused?"),
        ("/#/pools/default", "Pause", "Pause default?"),
        ("/#/pools/usable-paused", "Resume", "Resume usable-paused?"),
        ("/#/workers", f"Drain {screens.worker_name}", f"Drain {screens.worker_name}?"),
        (f"/#/workers/{screens.worker}", "Drain", f"Drain {screens.worker_name}?"),
        ("/#/workers/lost", "Acknowledge", "Acknowledge the loss of render-1?"),
        ("/#/webhooks", f"Replay the {one}", f"Replay the {one}?"),
        ("/#/webhooks", "Replay all failed", "Replay all 1 failed webhook?"),
        ("/#/dead-letters", screens.letter, f"Dead letter {screens.letter}"),
        ("/#/dead-letters", "Replay all", "Replay all 1 message?"),
        ("/#/dead-letters", "Purge all", "Purge all 1 message?"),
        ("/#/tokens", f"Revoke token {screens.token} of listed", f"Revoke token {screens.token} of listed?"),
    ]
    pause = "Pause all keys of usable"
    edit = (screens.letter, "Edit and replay")
    return [
        *((address, (button,), title) for address, button, title in found),
        ("/#/queues?search=usable", ("Actions for usable", "Edit usable"), "Edit usable"),
        ("/#/queues?search=usable", ("Keys of usable", "Actions for key k of usable", pause), f"{pause}?"),
        ("/#/dead-letters", edit, f"Edit and replay dead letter {screens.letter}"),
    ]


async def open_screen(page: Page, address: str) -> None:
    await page.evaluate("() => document.querySelector('h1')?.setAttribute('data-former', '')")
    await page.goto(address)
    await expect(page.locator("h1:not([data-former])")).to_be_visible()
    if address == "/docs":
        await expect(page.locator("main details").last).to_be_visible()
    elif "no-such" not in address:
        await expect(page.locator("#overview dd").first).not_to_have_text("–")
        await expect(
            page.locator("main table, main .panel, main .timeline, main .metrics")
            .locator("visible=true")
            .first
        ).to_be_visible()


async def unfold(page: Page, address: str) -> None:
    if address == "/docs":
        # It has hundreds of parts of three kinds: of each, those of tokens.
        await page.get_by_role("searchbox").fill("token")
    await page.evaluate(_UNFOLD)


async def faults_of_focus(page: Page) -> list[str]:
    """Press Tab until each control had the focus; return those that did not get it, or do not show it."""
    await page.set_viewport_size({"width": 1280, "height": 800})
    await page.evaluate("() => document.activeElement.blur()")
    await page.evaluate(_WATCH_FOCUS)
    for _ in range(0, _STOPS_MAX, _STOPS_AT_ONCE):
        for _ in range(_STOPS_AT_ONCE):
            await page.keyboard.press("Tab")
        if not await page.evaluate(_LEFT):
            break
    left, unmarked = await page.evaluate(_LEFT), await page.evaluate("() => window.unmarked")
    return [f"not reached: {each}" for each in left] + [
        f"without a visible focus: {each}" for each in unmarked
    ]


async def test_axe_finds_no_fault_on_any_screen_and_tab_reaches_every_control(
    admin: Page, screens: Screens
) -> None:
    faults: dict[str, list[str]] = {}
    for address in addresses(screens):
        await open_screen(admin, address)
        await unfold(admin, address)
        if found := await faults_of(admin) + await faults_of_focus(admin):
            faults[address] = found
    assert faults == {}


async def test_axe_finds_no_fault_in_any_dialog(admin: Page, screens: Screens) -> None:
    faults: dict[str, list[str]] = {}
    opened = None
    for address, buttons, title in dialogs(screens):
        if address != opened:
            await open_screen(admin, address)
            opened = address
        for button in buttons:
            # A list has one such button in each row of an action.
            await admin.get_by_role("button", name=button, exact=True).first.click()
        dialog = admin.get_by_role("dialog", name=title, exact=True)
        await expect(dialog).to_be_visible()
        if found := await faults_of(admin):
            faults[title] = found
        await admin.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
    assert faults == {}


async def test_axe_finds_no_fault_on_a_screen_that_is_refused_or_has_refused_buttons(
    browser: Browser, env: Environment, screens: Screens
) -> None:
    token = await env.create_token(name="scoped", role="read", scope=["usable"])
    names = ("resources", "pools", "workers", "webhooks", "dead-letters", "tokens")
    faults: dict[str, list[str]] = {}
    async with watched_page(browser, env.system.http_url, token=token) as page:
        await page.goto("/")
        await expect(page.locator("#identity summary")).to_contain_text("scoped")
        for address in (*(f"/#/{name}" for name in names), f"/#/executions/{screens.ended}"):
            await page.evaluate("() => document.querySelector('h1')?.setAttribute('data-former', '')")
            await page.goto(address)
            await expect(page.locator("h1:not([data-former])")).to_be_visible()
            await expect(page.locator("main .wrong").first).to_have_text(re.compile(r"\w"))
            if found := await faults_of(page):
                faults[address] = found
        await page.goto("/#/queues/usable")
        for name in ("Submit", "Pause", "Limit"):
            button = page.get_by_role("button", name=name, exact=True)
            await expect(button).to_be_disabled()
            await expect(button).to_have_accessible_description(re.compile("^Not allowed: this needs"))
        if found := await faults_of(page):
            faults["refused buttons"] = found
    assert faults == {}


# Of no running system: what is listed is compared with the sources.
LISTED = Screens(waiting=1, ended=2, worker="id", worker_name="name", letter="3", token=4)


async def test_every_screen_is_listed() -> None:
    screens = re.findall(r"^  \[/(\^.*\$)/, ", static_files()["router.js"].content.decode(), re.MULTILINE)
    assert len(screens) > 10
    patterns = [screen.replace(r"\/", "/").replace("(?<", "(?P<") for screen in screens]
    paths = [address.removeprefix("/#").partition("?")[0] for address in addresses(LISTED)]
    assert [pattern for pattern in patterns if not any(re.match(pattern, path) for path in paths)] == []


async def test_a_limit_is_changed_by_keyboard_alone_and_the_focus_returns(
    admin: Page, env: Environment, screens: Screens
) -> None:
    await open_screen(admin, "/#/queues/usable")
    limit = admin.get_by_role("button", name="Limit", exact=True)
    await expect(limit).to_be_enabled()
    for _ in range(40):
        await admin.keyboard.press("Tab")
        if await limit.evaluate("(node) => node === document.activeElement"):
            break
    await admin.keyboard.press("Enter")
    dialog = admin.get_by_role("dialog", name="Limit of usable")
    await expect(dialog.get_by_label("Maximum concurrency")).to_be_focused()
    await admin.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(limit).to_be_focused()
    await admin.keyboard.press("Enter")
    await expect(dialog.get_by_label("Maximum concurrency")).to_be_focused()
    await admin.keyboard.press("Control+a")
    await admin.keyboard.type("7")
    await admin.keyboard.press("Enter")
    await expect(dialog).to_have_count(0)
    await expect(limit).to_be_focused()
    assert (await env.stats("usable"))["max_concurrent"] == 7
