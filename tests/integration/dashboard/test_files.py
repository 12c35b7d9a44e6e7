"""The page's files: served to everybody, under a policy that nothing in them breaks."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from turnstile.executor.api import problems
from turnstile.executor.dashboard import page_routes
from turnstile.executor.dashboard.files import HEADERS, static_files

STATIC = Path(__file__).parents[3] / "executor" / "dashboard" / "static"
SCRIPTS = {name: found.content.decode() for name, found in static_files().items() if name.endswith(".js")}


@pytest.fixture
async def page() -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(page_routes())
    problems.install(app)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app, raise_app_exceptions=False), base_url="http://127.0.0.1"
    ) as http:
        yield http


def test_every_file_of_the_folder_is_served() -> None:
    assert set(static_files()) == {path.name for path in STATIC.iterdir()}


async def test_every_answer_carries_the_policy(page: httpx.AsyncClient) -> None:
    for path in ["/", *(f"/dashboard/{name}" for name in static_files())]:
        answer = await page.get(path)
        assert answer.status_code == 200, path
        assert {name: answer.headers[name] for name in HEADERS} == dict(HEADERS)


def test_the_policy_allows_nothing_inline_and_nobody_else() -> None:
    policy = dict(part.strip().split(" ", 1) for part in HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


async def test_whoever_only_asks_whether_the_page_is_there_gets_its_headers(page: httpx.AsyncClient) -> None:
    asked, got = await page.head("/"), await page.get("/")
    assert (asked.status_code, asked.headers) == (200, got.headers)


async def test_a_file_that_has_not_changed_is_not_sent_again(page: httpx.AsyncClient) -> None:
    first = await page.get("/dashboard/page.css")
    again = await page.get("/dashboard/page.css", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["nothing.js", "..%2Ffiles.py", "%2e%2e%2ffiles.py", "%2e%2e"])
async def test_nothing_but_the_files_is_served(page: httpx.AsyncClient, path: str) -> None:
    answer = await page.get(f"/dashboard/{path}")
    assert answer.status_code == 404


def test_no_script_makes_markup_of_a_text() -> None:
    sinks = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc")
    assert {name: sinks.findall(text) for name, text in SCRIPTS.items() if sinks.search(text)} == {}


def test_the_page_has_no_inline_script_or_style_and_loads_nothing_from_elsewhere() -> None:
    html = (STATIC / "index.html").read_text()
    assert re.findall(r"<script[^>]*>(?!</script>)|\sstyle=|<style|\son\w+=", html) == []
    for name, found in static_files().items():
        elsewhere = re.findall(rb"(?:https?:)?//[\w.-]+\.\w+", found.content)
        assert [link for link in elsewhere if b"www.w3.org" not in link] == [], name


def test_every_import_of_a_script_is_a_file_that_gives_that_name() -> None:
    for name, text in SCRIPTS.items():
        for names, source in re.findall(r'^import \{ (.+?) \} from "\./(.+?)";', text, re.MULTILINE):
            given = set(
                re.findall(
                    r"^export (?:async )?(?:function|const|class) (\w+)", SCRIPTS[source], re.MULTILINE
                )
            )
            wanted = {each.split(" as ")[0].strip() for each in names.split(",")}
            assert wanted <= given, f"{name} imports {wanted - given} from {source}"


def test_the_scripts_are_small_modules_with_short_lines() -> None:
    lines = {name: text.splitlines() for name, text in SCRIPTS.items()}
    assert {name: len(of) for name, of in lines.items() if len(of) > 250} == {}
