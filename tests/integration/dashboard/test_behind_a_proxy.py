"""The dashboard and its stream of events behind a reverse proxy that serves the executor under a path."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Response, expect

from tests.integration.dashboard.browser import DEADLINE_MILLISECONDS, watched_page
from tests.integration.dashboard.conftest import TOKEN
from tests.support.environment import Environment

pytestmark = pytest.mark.asyncio(loop_scope="package")
expect.set_options(timeout=DEADLINE_MILLISECONDS)

_PATH: Final = "/turnstile"
_HEAD_BYTES_MAX: Final = 64 * 1024


@pytest_asyncio.fixture(loop_scope="package")
async def proxy_url(env: Environment) -> AsyncIterator[str]:
    """A proxy that removes the path from each request; what is outside the path is refused."""
    target = urlsplit(env.system.http_url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, rest = head.split(b" ", 2)
            if not path.startswith(f"{_PATH}/".encode()):
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            first, headers = rest.split(b"\r\n", 1)
            kept = [line for line in headers.split(b"\r\n") if not line.lower().startswith(b"connection:")]
            up_reader, up_writer = await asyncio.open_connection(target.hostname, target.port)
            up_writer.write(
                b" ".join([method, path.removeprefix(_PATH.encode()), first])
                + b"\r\nConnection: close\r\n"
                + b"\r\n".join(kept)
            )
            both = [
                asyncio.create_task(_copy(reader, up_writer)),
                asyncio.create_task(_copy(up_reader, writer)),
            ]
            _, pending = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            await asyncio.wait(both)
            up_writer.close()
        except (OSError, asyncio.IncompleteReadError):
            pass  # The browser has closed the connection.
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_HEAD_BYTES_MAX)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_HEAD_BYTES_MAX):
        writer.write(data)
        await writer.drain()


async def test_every_file_page_and_event_is_found_under_the_path_of_a_proxy(
    browser: Browser, env: Environment, proxy_url: str
) -> None:
    await env.put("proxied", max_concurrent=0)
    missing: list[str] = []
    outside: list[str] = []

    def note(response: Response) -> None:
        if response.status >= httpx.codes.BAD_REQUEST:
            missing.append(response.url)
        if not response.url.startswith(f"{proxy_url}{_PATH}/"):
            outside.append(response.url)

    async with watched_page(browser, proxy_url, token=TOKEN) as page:
        page.on("response", note)
        async with page.expect_response(f"{proxy_url}{_PATH}/api/v1/events*") as opened:
            await page.goto(f"{_PATH}/")
        assert (await opened.value).status == httpx.codes.OK
        await expect(page.locator("#live")).to_have_text("Live")
        execution_id = await env.submit("proxied")
        await page.goto(f"{_PATH}/#/executions/{execution_id}")
        await expect(page.locator("h1 .badge")).to_have_text("queued")
        await page.get_by_role("link", name="Admin", exact=True).click()
        await page.get_by_role("link", name="API", exact=True).click()
        await expect(page).to_have_url(f"{proxy_url}{_PATH}/docs")
        await page.locator("#action-proxied summary").click()
        await expect(page.locator("#action-proxied")).to_contain_text(f"{proxy_url}{_PATH}/api/v1/executions")
        await page.get_by_role("link", name="Dashboard", exact=True).click()
        await expect(page.locator("#live")).to_have_text("Live")
    assert (missing, outside) == ([], [])


async def test_an_event_passes_a_proxy_at_once(env: Environment, proxy_url: str) -> None:
    await env.put("proxied", max_concurrent=0)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx.AsyncClient(base_url=f"{proxy_url}{_PATH}", headers=headers, trust_env=False) as http,
        asyncio.timeout(10),
        http.stream("GET", "/api/v1/events", timeout=10.0) as stream,
    ):
        assert stream.headers["content-type"].startswith("text/event-stream")
        # Otherwise nginx collects the events.
        assert stream.headers["x-accel-buffering"] == "no"
        sent = False
        async for line in stream.aiter_lines():
            if not sent and line.startswith("data: "):
                await env.submit("proxied")
                sent = True
            elif sent and line.startswith("data: ") and '"proxied"' in line:
                break
        else:
            raise AssertionError("the stream ended")
