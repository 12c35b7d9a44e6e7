"""The dashboard and its stream of events behind a reverse proxy that serves the executor under a path."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Response, expect

from tests.integration.dashboard.browser import DEADLINE_MILLISECONDS, watched_page
from tests.integration.dashboard.conftest import TOKEN
from tests.support.environment import Environment
from tests.support.traffic import until
from turnstile.localservers.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="package")
expect.set_options(timeout=DEADLINE_MILLISECONDS)

_PATH: Final = "/turnstile"
_HEAD_BYTES_MAX: Final = 64 * 1024
_STOP_SECONDS: Final = 10.0
_NGINX: Final = """
daemon off;
{user}
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            return 404;
        }}
        location {path}/ {{
            proxy_pass {upstream}/;
        }}
    }}
}}
"""


@asynccontextmanager
async def _nginx(upstream: str, folder: Path) -> AsyncIterator[str]:
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("nginx is not installed; the small proxy of this test has the same path")
    port = free_port()
    configuration = folder / "nginx.conf"
    # As another user its worker could not write into the folder of the test.
    user = "user root;" if os.geteuid() == 0 else ""
    configuration.write_text(
        _NGINX.format(folder=folder, port=port, path=_PATH, upstream=upstream, user=user)
    )
    nginx = await asyncio.create_subprocess_exec(program, "-p", str(folder), "-c", str(configuration))
    try:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(trust_env=False) as http:

            async def answers() -> bool:
                try:
                    return (await http.get(url, timeout=5.0)).status_code == httpx.codes.NOT_FOUND
                except httpx.TransportError:
                    return False

            await until(answers, "nginx")
        yield url
    finally:
        nginx.send_signal(signal.SIGTERM)
        async with asyncio.timeout(_STOP_SECONDS):
            await nginx.wait()


@asynccontextmanager
async def _small_proxy(upstream: str, _: Path) -> AsyncIterator[str]:
    """Remove the path from each request; one request a connection. What is outside the path is refused."""
    target = urlsplit(upstream)

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


@pytest.fixture(params=["small", "nginx"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(loop_scope="package")
async def proxy_url(kind: str, env: Environment, tmp_path: Path) -> AsyncIterator[str]:
    proxy = _nginx if kind == "nginx" else _small_proxy
    async with proxy(env.system.http_url, tmp_path) as url:
        yield url


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
        sent = False
        async for line in stream.aiter_lines():
            if not sent and line.startswith("data: "):
                await env.submit("proxied")
                sent = True
            elif sent and line.startswith("data: ") and '"proxied"' in line:
                break
        else:
            raise AssertionError("the stream ended")
