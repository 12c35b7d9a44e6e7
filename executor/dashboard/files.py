"""Serves the dashboard, `/docs` and their files: read once, revalidated by hash, and without foreign scripts.

In: a name. Out: a file of `static/`, which needs no token: it contains no data. Foreign text cannot run code
even if the page has a bug: no scripts but the files, no inline style, no markup from text (trusted types).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from fastapi import APIRouter, Request, Response

from turnstile.common.domain.errors import Code, Refusal

_PAGE: Final = "index.html"
_DOCS: Final = "docs.html"
_TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # A new version is used at once; an unchanged file costs a 304.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFile:
    """One file of the page."""

    content: bytes
    media_type: str
    etag: str


@cache
def static_files() -> Mapping[str, StaticFile]:
    """Return the files of the page by their names under `/dashboard/`."""
    folder = resources.files("turnstile.executor.dashboard").joinpath("static")
    return {entry.name: _file(entry) for entry in folder.iterdir() if _suffix(entry) in _TYPES}


def page_routes() -> APIRouter:
    """Return the routes that need no token."""
    routes = APIRouter(include_in_schema=False)

    @routes.api_route("/", methods=["GET", "HEAD"])
    async def get_page(request: Request) -> Response:
        return _answer(request, static_files()[_PAGE])

    @routes.api_route("/docs", methods=["GET", "HEAD"])
    async def get_docs(request: Request) -> Response:
        return _answer(request, static_files()[_DOCS])

    @routes.api_route("/dashboard/{file}", methods=["GET", "HEAD"])
    async def get_file(request: Request, file: str) -> Response:
        found = static_files().get(file)
        if found is None:
            raise Refusal(Code.NOT_FOUND, "file: the dashboard has no such file; open /")
        return _answer(request, found)

    return routes


def _answer(request: Request, found: StaticFile) -> Response:
    headers = {**HEADERS, "ETag": found.etag}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)


def _file(entry: Traversable) -> StaticFile:
    content = entry.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return StaticFile(content=content, media_type=_TYPES[_suffix(entry)], etag=etag)


def _suffix(entry: Traversable) -> str:
    return entry.name.rpartition(".")[2]
