"""Takes a picture of every screen of the dashboard: light, dark, 2,200 pixels wide, and as wide as a phone.

In: an installation of its own with varied data: what failed, waits, runs, has long names, is dead or leaves.
Out: build/pictures/LOOK/SCREEN.png, to be looked at; with --docs also the pictures of the documentation.
"""

import argparse
import asyncio
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from playwright.async_api import Browser, Page, expect
from rich.console import Console
from rich.text import Text

from tests.integration.dashboard.browser import chromium, watched_page
from tests.integration.webhooks.receiver import Receiver, receiving
from tests.support.environment import Environment, running_environment
from tests.support.ledger import LOST_WORKER
from tests.support.sources import servers_of_the_session
from tests.support.traffic import submit, until
from turnstile.migrations.run import migrate

TOKEN: Final = "a-token-of-the-pictures"
LONG: Final = "billing.invoices.monthly-statement-with-attachments-and-reminders-for-overdue-customers"
LONG_KEY: Final = "customer-0000000000000000004711-of-the-subsidiary-in-Klagenfurt-am-Wörthersee"
LOOKS: Final[dict[str, dict[str, Any]]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 800}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 800}},
    "wide": {"color_scheme": "light", "viewport": {"width": 2200, "height": 1300}},
    "phone": {
        "color_scheme": "light",
        "viewport": {"width": 390, "height": 844},
        "device_scale_factor": 2,
        "has_touch": True,
    },
}
ACTIONS: Final = "tests.integration.dashboard.pictured_actions"
DATABASE: Final = "turnstile_pictures"
SCHEMA: Final = {
    "type": "object",
    "properties": {
        "model": {"type": "string", "minLength": 3, "description": "Name of the model in the registry."},
        "epochs": {"type": "integer", "minimum": 1, "maximum": 500, "default": 20},
        "precision": {"enum": ["float32", "bfloat16"], "default": "bfloat16"},
        "is_resumed": {"type": "boolean", "default": False},
        "not_before": {"type": "string", "format": "date-time"},
        "layers": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["model"],
}


@asynccontextmanager
async def installation(receiver: Receiver) -> AsyncIterator[tuple[Environment, dict[str, str], str]]:
    """Run a system with varied data; yields it with the addresses of its screens by name, and a token."""
    with servers_of_the_session() as servers:
        database_url, amqp_url = (
            servers.postgresql.create_database(DATABASE),
            servers.rabbitmq.create_vhost(DATABASE),
        )
        try:
            await migrate(database_url)
            settings = {
                "TURNSTILE_API_TOKENS": TOKEN,
                "TURNSTILE_WEBHOOK_ALLOW_PRIVATE": "true",
                "TURNSTILE_WORKER_CONCURRENCY": "12",
            }
            async with running_environment(database_url, amqp_url, settings=settings, actions=ACTIONS) as env:
                env.http.headers["Authorization"] = f"Bearer {TOKEN}"
                token = await env.create_token(name="alice", role="admin", seconds=40 * 86400)
                await env.create_token(name="ci", role="submit", scope=["reports.", "mail."])
                yield env, await seed(env, receiver), token
                await env.stop_running()
        finally:
            servers.postgresql.drop_database(DATABASE)
            servers.rabbitmq.delete_vhost(DATABASE)


async def seed(env: Environment, receiver: Receiver) -> dict[str, str]:
    """Fill the installation; return the addresses of all screens by name."""
    for name, capacity in (
        ("licence-autocad", 3),
        ("desk-plotter", 1),
        ("a-resource-with-a-rather-long-name-for-the-render-farm", 40),
    ):
        assert (await env.http.put(f"/resources/{name}", json={"capacity": capacity})).is_success
    await env.put("gpu.train", max_concurrent=1, pool="gpu", parameters_schema=SCHEMA)
    await env.put(
        "cad.export",
        pool="drawing",
        entrypoint="tests.e2e.actions:noop",
        uses=[{"resource": "licence-autocad", "units": 2}],
    )
    await env.put("nightly.cleanup", max_concurrent=1)
    await env.put("reports.archive", max_concurrent=1)
    for name, fields in (
        (
            "nightly-cleanup",
            {"action_ref": "nightly.cleanup", "cron": "30 2 * * *", "timezone": "Europe/Berlin"},
        ),
        ("mirror-sync", {"action_ref": "reports.archive", "every": "15m", "overlap": "skip"}),
    ):
        assert (await env.http.put(f"/schedules/{name}", json=fields)).is_success
    await env.put("billing.export", max_concurrent=2)
    await env.http.post("/actions/nightly.cleanup/pause")
    await env.patch("video.encode", max_concurrent=2)
    await env.start_silent_worker("drawing")

    waiting = await env.submit_many(
        [
            {"action_ref": "gpu.train", "parameters": {"model": f"resnet-{n}"}, "priority": 1 + n % 5}
            for n in range(7)
        ]
    )
    gated = await env.submit_many([{"action_ref": "cad.export"}] * 3)
    await env.submit_many([{"action_ref": "nightly.cleanup"}] * 2)
    await env.put(
        "cad.plot", pool="drawing", max_concurrent=1, entrypoint="tests.e2e.actions:noop",
        uses=["desk-plotter", "licence-autocad"],
    )  # fmt: skip
    await env.submit("cad.plot")
    chained = await env.submit("cad.plot")
    running, *_ = await env.submit_many(
        [{"action_ref": "video.encode", "parameters": {"title": f"film {n}"}} for n in range(5)]
    )
    await env.submit_many([{"action_ref": LONG, "parameters": {"customer": LONG_KEY}}] * 3)
    key = quote(LONG_KEY, safe="")
    assert (
        await env.http.put(f"/actions/{LONG}/keys/{key}", json={"max_concurrent": 1, "weight": 3})
    ).is_success
    failed, *_ = await env.submit_many(
        [{"action_ref": "mail.send", "parameters": {"to": "customer-service-of-the-northern-region"}}] * 3
    )
    retried = await env.submit("mail.send", parameters={"to": "busy@example.org"})
    receiver.says("410 Gone", b"this hook was removed; see the new address in your settings")
    receiver.says("200 OK")
    lost = await env.submit("reports.render", parameters={"seconds": 0.1}, callback_url=receiver.url)
    await env.ended(lost)

    async def has_failed() -> bool:
        return bool((await env.http.get("/webhooks", params={"state": "failed"})).json()["items"])

    await until(has_failed, "the webhook that is refused")
    rendered = await env.submit(
        "reports.render",
        parameters={"report": "sales of the first quarter", "pages": 12},
        metadata={"order": "4711", "requested_by": "the accounting department"},
        callback_url=receiver.url,
    )
    await env.submit("reports.render", parameters={"report": "later"}, run_at="2030-01-31T09:00:00Z")
    await env.ended(failed, retried, rendered)
    cancelled = await env.submit("gpu.train", parameters={"model": "wrong"})
    await env.cancel(cancelled, reason="submitted by mistake")
    await submit(
        env.amqp_url,
        [{"action_ref": "reports.rendr"}, b"{ broken", {"action_ref": "mail.send", "priority": 9}],
    )

    async def all_are_dead() -> bool:
        return bool((await env.http.get("/dead-letters")).json()["total"] == 3)

    await until(all_are_dead, "the dead letters")
    worker_id = await env.history.value("SELECT worker_id FROM ledger.worker ORDER BY registered_at LIMIT 1")
    leaver = await env.system.start_worker(ACTIONS)
    leaver_id = await env.history.value(
        "SELECT worker_id FROM ledger.worker ORDER BY registered_at DESC LIMIT 1"
    )
    assert (await env.http.post(f"/workers/{leaver_id}/drain")).is_success
    for worker in ("lost", "lost-too"):
        await env.history.rows(LOST_WORKER.replace("'lost', 1", f"'{worker}', 1"))
    await env.history.rows(
        "UPDATE ledger.worker SET held_ids = $1 WHERE worker_id = 'lost'", [running, *waiting, *gated]
    )
    await env.until_status(running, "running")
    assert leaver.process.returncode is None
    return {
        "home": "/#/",
        "queues": "/#/queues",
        "queue": "/#/queues/gpu.train",
        "queue-running": "/#/queues/reports.render",
        "queue-gated": "/#/queues/cad.export",
        "queue-failing": "/#/queues/mail.send",
        "queue-long": f"/#/queues/{LONG}",
        "executions": "/#/executions",
        "executions-filtered": "/#/executions?status=failed,timeout,abandoned&error=mailbox",
        "execution-waiting": f"/#/executions/{waiting[-1]}",
        "execution-gated": f"/#/executions/{gated[-1]}",
        "execution-chained": f"/#/executions/{chained}",
        "execution-running": f"/#/executions/{running}",
        "execution-failed": f"/#/executions/{failed}",
        "execution-completed": f"/#/executions/{rendered}",
        "execution-cancelled": f"/#/executions/{cancelled}",
        "resources": "/#/resources",
        "resource": "/#/resources/licence-autocad",
        "pools": "/#/pools",
        "pool": "/#/pools/gpu",
        "schedules": "/#/schedules",
        "workers": "/#/workers",
        "worker": f"/#/workers/{worker_id}",
        "worker-draining": f"/#/workers/{leaver_id}",
        "workers-lost": "/#/workers?state=lost",
        "worker-lost": "/#/workers/lost",
        "webhooks": "/#/webhooks",
        "dead-letters": "/#/dead-letters",
        "audit-log": "/#/audit-log",
        "tokens": "/#/tokens",
        "queue-key": f"/#/queues/{LONG}?key={quote(LONG_KEY)}",
        "not-found": "/#/no-such-screen",
        "docs": "/docs",
    }


async def traffic(env: Environment) -> None:
    """Keep some queues busy, so that rates and charts have values; until cancelled."""
    number = 0
    while True:
        number += 1
        reports = [{"action_ref": "reports.render", "parameters": {"report": f"report {number}"}}] * (
            number % 4
        )
        await env.submit_many([*reports, {"action_ref": "mail.send", "parameters": {"to": "a@example.org"}}])
        await asyncio.sleep(0.5)


async def settled(page: Page) -> None:
    """Wait until the screen shows its content."""
    await expect(page.locator("h1")).to_be_visible()
    await page.wait_for_load_state("load")
    live = page.locator("#live")
    if await live.count():
        await expect(live).to_have_text("Live")
        await expect(page.locator("#overview dd").first).to_have_text(re.compile(r"\d"))
    # What is shown after the first numbers, like bars that grow.
    await page.wait_for_timeout(700)


async def dialogs(page: Page, folder: Path, addresses: dict[str, str]) -> None:
    """Take a picture of each kind of dialog."""
    for name, screen, button in (
        ("dialog-submit", "queue", "Submit"),
        ("dialog-limit", "queue", "Limit"),
        ("dialog-edit", "queue-failing", "Edit"),
        ("dialog-cancel", "execution-waiting", "Cancel"),
        ("dialog-retry-edited", "execution-completed", "Edit and retry"),
        ("dialog-bulk", "executions-filtered", "Retry all matching…"),
        ("dialog-purge", "dead-letters", "Purge all"),
        ("dialog-capacity", "resource", "Capacity"),
        ("dialog-key", "queue-key", f"Change of key {LONG_KEY}"),
        ("dialog-revoke", "tokens", "Revoke token 2 of ci"),
    ):
        await page.goto(addresses[screen])
        await settled(page)
        await page.get_by_role("button", name=button, exact=True).click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.screenshot(path=folder / f"{name}.png")
        await page.keyboard.press("Escape")
    await page.goto(addresses["dead-letters"])
    await page.locator("tbody th button").first.click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.screenshot(path=folder / "dialog-dead-letter.png")


async def take(page: Page, addresses: dict[str, str], folder: Path) -> None:
    """Take the pictures of one look."""
    for name, address in addresses.items():
        await page.goto(address)
        await settled(page)
        for details in await page.locator("main > details:not([open]) > summary").all():
            await details.click()
        if name == "docs":
            await page.locator("details.action summary").first.click()
            await page.locator("details.operation summary").first.click()
            await expect(page.locator("details.action[open] pre").first).to_be_visible()
        await page.wait_for_timeout(150)
        await page.screenshot(path=folder / f"{name}.png", full_page=name != "docs")
    await dialogs(page, folder, addresses)


def terminal(env: Environment, commands: Sequence[str]) -> str:
    """Return what commands of the executor print in a terminal, as a drawing."""
    screen = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    variables = {
        "TURNSTILE_API_URL": env.system.http_url, "TURNSTILE_API_TOKEN": TOKEN, "COLUMNS": "100",
        "FORCE_COLOR": "1", "TERM": "xterm-256color",
    }  # fmt: skip
    for command in commands:
        screen.print(Text(f"$ {command}", style="bold green"))
        printed = subprocess.run(
            [sys.executable, "-m", "turnstile.executor.cli", *shlex.split(command)[1:]],
            env=os.environ | variables, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        screen.print(Text.from_ansi((printed.stdout + printed.stderr).rstrip()), "")
    # Of its own it would load a font from elsewhere.
    return re.sub(r"@font-face \{.*?\}", "", screen.export_svg(title="Turnstile"), flags=re.DOTALL)


async def take_for_docs(browser: Browser, env: Environment, addresses: dict[str, str], folder: Path) -> None:
    """Take the pictures of README.md and docs/dashboard.md."""
    waiting = addresses["execution-gated"].rpartition("/")[2]
    commands = (
        "executor submit reports.render report=sales pages=12 --wait", f"executor get {waiting}",
        "executor attention",
    )  # fmt: skip
    (folder / "terminal.svg").write_text(await asyncio.to_thread(terminal, env, commands))
    for name, scheme, height, screen in (
        ("dashboard-home", "light", 1000, "home"),
        ("dashboard-why", "light", 700, "execution-gated"),
        ("dashboard-queues", "light", 700, "queues"),
        ("dashboard-execution", "dark", 900, "execution-completed"),
    ):
        look = {"color_scheme": scheme, "viewport": {"width": 1280, "height": height}}
        async with watched_page(browser, env.system.http_url, token=TOKEN, **look) as page:
            await page.goto(addresses[screen])
            await settled(page)
            await page.screenshot(path=folder / f"{name}.png")


async def main(folder: Path, docs: Path | None) -> None:
    """Take all pictures."""
    async with (
        receiving() as receiver,
        installation(receiver) as (env, addresses, token),
        chromium() as browser,
    ):
        busy = asyncio.create_task(traffic(env), name="traffic")
        for look in LOOKS:
            (folder / look).mkdir(parents=True, exist_ok=True)
            async with watched_page(browser, env.system.http_url, token=token, **LOOKS[look]) as page:
                await take(page, addresses, folder / look)
        if docs is not None:
            await take_for_docs(browser, env, addresses, docs)
        busy.cancel()
    print(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Take a picture of every screen of the dashboard.")
    parser.add_argument("--folder", type=Path, default=Path("build/pictures"))
    parser.add_argument(
        "--docs", type=Path, default=None, help="also write the pictures of this folder, like docs/pictures"
    )
    options = parser.parse_args()
    asyncio.run(main(options.folder, options.docs))
