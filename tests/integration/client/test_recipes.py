"""The programs of the documentation run as they are printed, and what they send is a request."""

import asyncio
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.http_server import answering
from turnstile.common.requests import read_requested_body

_DOCS = Path(__file__).parents[3] / "docs"
_RECIPES = (_DOCS / "how-to" / "submit-from-an-application.md").read_text()
_SUBMIT = (_DOCS / "submit.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ENDED = {
    "action_ref": "reports.render",
    "status": "completed",
    "attempt": 1,
    "parameters": {},
    "metadata": {},
    "created_at": "2030-01-01T00:00:00Z",
    "completed_at": "2030-01-01T00:00:00Z",
}


class _Api:
    """Completes every execution at once: its id is the customer, its result the parameters."""

    def __init__(self) -> None:
        self.keys: list[str | None] = []

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        if body:
            accepted = []
            for item in json.loads(body):
                read_requested_body(json.dumps(item).encode())
                assert item["action_ref"] == "reports.render"
                self.keys.append(item.get("idempotency_key"))
                id_ = item["parameters"]["customer_id"]
                accepted.append({"id": id_, "status": "queued", "position": 1, "duplicate": False})
            return 202, json.dumps({"items": accepted}).encode()
        id_ = int(path.rpartition("/")[2])
        return 200, json.dumps({**_ENDED, "id": id_, "result": {"customer": id_}}).encode()


@pytest.fixture
def api() -> _Api:
    return _Api()


@pytest.fixture
def folder(tmp_path: Path, api: _Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The programs by their names, in the current folder, with the environment that they need."""
    for _, text in (*_BLOCK.findall(_RECIPES), *_BLOCK.findall(_SUBMIT)):
        if named := re.match(r"# (\w+\.py)\n", text):
            (tmp_path / named[1]).write_text(text)
    for name in [name for name in os.environ if name.startswith("TURNSTILE_")]:
        monkeypatch.delenv(name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with answering(api.answer) as url:
        monkeypatch.setenv("TURNSTILE_API_URL", url)
        yield tmp_path
    sys.modules.pop("reports", None)


def _output(*arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_scripts(folder: Path) -> None:
    assert folder.is_dir()
    assert _output("submit.py") == "7 {'customer': 7}\n"
    assert _output("bulk.py").splitlines() == [f"{n} completed {{'customer': {n}}}" for n in (7, 8, 9)]
    assert _output("nightly.py").splitlines() == [f"{n} {{'customer': {n}}}" for n in (7, 8, 9)]


def test_a_notebook(folder: Path) -> None:
    program = (
        "import ast, asyncio\n"
        "from pathlib import Path\n"
        "code = compile(Path('notebook.py').read_text(), 'cell', 'exec', ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)\n"
        "asyncio.run(eval(code))\n"
    )
    (folder / "cell.py").write_text(program)
    assert _output("cell.py") == "completed\n"


async def test_fastapi(folder: Path, api: _Api) -> None:
    app = runpy.run_path(str(folder / "app.py"))["app"]
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://app") as browser,
    ):
        answer = await browser.post("/customers/7/report?order=4711")
    assert (answer.status_code, answer.json()) == (202, {"execution_id": 7})
    assert api.keys == ["4711"]


async def test_an_outage_is_a_503_within_seconds(
    folder: Path, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("django")
    monkeypatch.setenv("TURNSTILE_API_URL", f"http://127.0.0.1:{unused_tcp_port}")
    app = runpy.run_path(str(folder / "app.py"))["app"]
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        # Far below the 30 s of a client without the setting.
        httpx.AsyncClient(transport=transport, base_url="http://app", timeout=20) as browser,
        asyncio.timeout(20),
    ):
        answer = await browser.post("/customers/7/report?order=4711")
    assert answer.status_code == 503
    assert "the API cannot be reached" in answer.json()["detail"]
    (folder / "server.py").write_text(_DJANGO.partition("# As a server")[0] + "request(1)\n")
    assert (await asyncio.to_thread(_output, "server.py")).startswith("503 Service Unavailable")


_DJANGO = """
import os, sys
from io import BytesIO
from django.conf import settings
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x")
import django
from django.core.wsgi import get_wsgi_application
from django.urls import path
from views import order_report
from wsgiref.util import setup_testing_defaults
urlpatterns = [path("customers/<int:customer_id>/report", order_report)]
serve = get_wsgi_application()

def request(number):
    environ = {"PATH_INFO": f"/customers/{number}/report", "QUERY_STRING": f"order={number}"}
    setup_testing_defaults(environ)
    print(b"".join(serve(environ, lambda status, headers: print(status, end=" "))).decode(), flush=True)

# As a server that loads the application and then forks its workers.
request(1)
for number in (2, 3):
    child = os.fork()
    if child == 0:
        request(number)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
"""


def test_django_with_forked_workers(folder: Path, api: _Api) -> None:
    pytest.importorskip("django")
    (folder / "server.py").write_text(_DJANGO)
    answers = [f'202 Accepted {{"execution_id": {number}}}' for number in (1, 2, 3)]
    assert _output("server.py").splitlines() == answers
    assert api.keys == ["1", "2", "3"]
