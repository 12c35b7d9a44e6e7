"""Seven prepared faults, each named by a card of the API and of the home screen."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.integration.dashboard.axe import faults_of
from tests.integration.dashboard.browser import DEADLINE_MILLISECONDS, watched_page
from tests.integration.webhooks.receiver import receiving
from tests.support.environment import Environment, running_environment
from tests.support.sources import LentUrls
from tests.support.traffic import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
expect.set_options(timeout=DEADLINE_MILLISECONDS)

FAULTS = {
    "paused": ("nightly.cleanup", "executor actions resume nightly.cleanup", "#/queues/nightly.cleanup"),
    "no_worker": ("gpu", "TURNSTILE_WORKER_POOLS=gpu worker serve --actions MODULE", "#/pools/gpu"),
    "idle_units": ("desk", "executor resources put licence --rank 4", "#/resources/licence"),
    "failing_deployment": ("scripted", "executor get", "#/executions?action_ref=scripted"),
    "starved_key": ("import", "executor actions keys set import big --max-concurrent 1", "key=small"),
    "webhooks": ("http://127.0.0.1", "executor webhooks replay --all", "#/webhooks"),
    "full": ("mail.bulk", "executor actions show mail.bulk", "#/queues/mail.bulk"),
}
"""By kind: the subject, the command and the page."""
NOOP = "tests.e2e.actions:noop"


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def faulty(lent_urls: LentUrls) -> AsyncIterator[Environment]:
    """An installation with the seven faults."""
    settings = {"TURNSTILE_WEBHOOK_ALLOW_PRIVATE": "true"}
    with lent_urls() as urls:
        async with running_environment(*urls, settings=settings) as env, receiving() as receiver:
            assert await cards_of(env) == []
            receiver.says("410 Gone", b"this hook was removed")
            await prepare(env, receiver.url)
            yield env
            await env.stop_running()


async def prepare(env: Environment, receiver_url: str) -> None:
    await env.start_silent_worker("empty")
    await env.put("nightly.cleanup", entrypoint=NOOP, paused=True)
    await env.put("gpu.train", entrypoint=NOOP, pool="gpu")
    for name, capacity, rank in (("desk", 4, 5), ("licence", 1, 6)):
        resource = {"capacity": capacity, "rank": rank}
        assert (await env.http.put(f"/resources/{name}", json=resource)).is_success
    await env.put("cad.export", entrypoint=NOOP, pool="empty", uses=["desk", "licence"])
    await env.put(
        "import", entrypoint=NOOP, pool="empty", concurrency_key="/customer", max_concurrent_total=2
    )
    await env.put("mail.bulk", entrypoint=NOOP, rate={"starts": 1, "per": "1h"})
    named = ["nightly.cleanup", "gpu.train", *["cad.export"] * 6, *["mail.bulk"] * 3]
    await env.submit_many(
        [
            *({"action_ref": ref} for ref in named),
            *({"action_ref": "import", "parameters": {"customer": "big"}} for _ in range(4)),
            {"action_ref": "import", "parameters": {"customer": "small"}},
            *({"action_ref": "scripted", "parameters": {"steps": ["PERMANENT"]}} for _ in range(4)),
            {"action_ref": "noop", "callback_url": receiver_url},
        ]
    )

    async def all_are_found() -> bool:
        return {each["kind"] for each in await cards_of(env)} >= FAULTS.keys()

    await until(all_are_found, "a card for each fault")


async def cards_of(env: Environment) -> list[dict[str, Any]]:
    """Return the cards of what has waited for a second."""
    answer = await env.http.get("/attention", params={"waited": "1s"})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


async def test_each_fault_has_one_card_with_its_command_and_its_page(faulty: Environment) -> None:
    found = await cards_of(faulty)
    assert sorted({each["kind"] for each in found} - FAULTS.keys()) == []
    for kind, (subject, command, page) in FAULTS.items():
        card = next(each for each in found if each["kind"] == kind and subject in each["subject"])
        assert card["command"].startswith(command), card
        assert page in card["link"], card
    severities = [each["severity"] for each in found]
    assert severities == sorted(severities, key=["critical", "warning", "notice"].index)


async def test_what_a_bound_stops_is_no_fault_before_it_has_waited(faulty: Environment) -> None:
    found = (await faulty.http.get("/attention", params={"waited": "1d"})).json()["items"]
    assert {"full", "starved_key", "idle_units"}.isdisjoint(each["kind"] for each in found)
    assert {"paused", "failing_deployment", "webhooks"} <= {each["kind"] for each in found}


async def test_home_names_each_fault_and_a_card_leads_to_its_page(
    browser: Browser, faulty: Environment
) -> None:
    async with watched_page(browser, faulty.system.http_url) as page:
        await page.goto("/#/?waited=1s")
        cards = page.get_by_role("region", name="Needs attention").get_by_role("listitem")
        for subject, command, _ in FAULTS.values():
            card = cards.filter(has_text=command)
            await expect(card.first).to_contain_text(subject)
        assert await faults_of(page) == []
        await cards.filter(has_text="actions resume").get_by_role("button", name="Resume:").click()
        await page.get_by_role("dialog").get_by_role("button", name="Resume").click()
        await expect(cards.filter(has_text="actions resume")).to_have_count(0)
        await faulty.http.post("/actions/nightly.cleanup/pause")
        await cards.filter(has_text="licence").first.get_by_role("link").click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("licence")


async def test_one_field_finds_an_id_an_action_a_key_and_an_error_and_keys_open_screens(
    browser: Browser, faulty: Environment
) -> None:
    async with watched_page(browser, faulty.system.http_url) as page:
        await page.goto("/#/")
        await expect(page.locator("#live")).to_have_text("Live")
        field = page.get_by_role("searchbox", name="Search by #id")
        for words, address in (
            ("#1", "#/executions/1"),
            ("cad.export", "#/queues/cad.export"),
            ("small", "#/queues/import?key=small"),
            ("as the script", "#/executions?error=as+the+script"),
        ):
            await page.keyboard.press("/")
            await expect(field).to_be_focused()
            await field.fill(words)
            await field.press("Enter")
            await expect(page).to_have_url(f"{faulty.system.http_url}/{address}")
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
        assert await faults_of(page) == []
        await page.keyboard.press("Escape")
        await page.keyboard.press("g")
        await page.keyboard.press("w")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Workers")
