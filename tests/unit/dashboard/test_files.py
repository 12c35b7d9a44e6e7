"""The static files of the dashboard: served without a token, under a content security policy."""

import re
from collections.abc import AsyncIterator
from graphlib import TopologicalSorter
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from turnstile.executor.api import problems
from turnstile.executor.dashboard.files import HEADERS, page_routes, static_files

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


async def test_every_response_has_the_policy(page: httpx.AsyncClient) -> None:
    for path in ["/", *(f"/dashboard/{name}" for name in static_files())]:
        answer = await page.get(path)
        assert answer.status_code == 200, path
        assert {name: answer.headers[name] for name in HEADERS} == dict(HEADERS)


def test_the_policy_allows_nothing_inline_and_no_other_origin() -> None:
    policy = dict(part.strip().split(" ", 1) for part in HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


async def test_head_returns_the_headers_of_get(page: httpx.AsyncClient) -> None:
    head, got = await page.head("/"), await page.get("/")
    assert (head.status_code, head.headers) == (200, got.headers)


async def test_an_unchanged_file_is_not_sent_again(page: httpx.AsyncClient) -> None:
    first = await page.get("/dashboard/page.css")
    again = await page.get("/dashboard/page.css", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["nothing.js", "..%2Ffiles.py", "%2e%2e%2ffiles.py", "%2e%2e"])
async def test_nothing_but_the_files_is_served(page: httpx.AsyncClient, path: str) -> None:
    answer = await page.get(f"/dashboard/{path}")
    assert answer.status_code == 404


def test_no_script_inserts_markup() -> None:
    sinks = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc")
    assert {name: sinks.findall(text) for name, text in SCRIPTS.items() if sinks.search(text)} == {}


def test_the_page_has_no_inline_script_or_style_and_loads_nothing_from_elsewhere() -> None:
    html = (STATIC / "index.html").read_text()
    assert re.findall(r"<script[^>]*>(?!</script>)|\sstyle=|<style|\son\w+=", html) == []
    for name, found in static_files().items():
        elsewhere = re.findall(rb"(?:https?:)?//[\w.-]+\.\w+", found.content)
        assert [link for link in elsewhere if b"www.w3.org" not in link] == [], name


def test_the_imports_of_the_scripts_form_no_circle() -> None:
    imports = {name: re.findall(r'from\s+"\./([\w.]+)"', text) for name, text in SCRIPTS.items()}
    assert sum(map(len, imports.values())) > len(SCRIPTS)
    assert set(TopologicalSorter(imports).static_order()) == set(SCRIPTS)
