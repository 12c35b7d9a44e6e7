"""`import turnstile` and the command `turnstile`: fast, lazy, and clear about what is not installed."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.http_server import answering

ROOT = Path(__file__).parents[3]
_HARNESS = ("stress", "localservers")
_SERVER_CODE = (
    "fastapi",
    "uvicorn",
    "starlette",
    "matplotlib",
    "sqlalchemy",
    "alembic",
    "asyncpg",
    "turnstile.executor",
)
_IMPORTED = """
import json, sys, time
began = time.perf_counter()
{statement}
seconds = time.perf_counter() - began
print(json.dumps([seconds, sorted(sys.modules)]))
"""


def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TURNSTILE_")}
    return subprocess.run(
        [sys.executable, *arguments],
        env=clean | settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def imported(statement: str) -> tuple[float, set[str]]:
    """Return the duration of an import in a fresh process, and the modules that are loaded then."""
    seconds, modules = json.loads(run("-c", _IMPORTED.format(statement=statement)).stdout)
    return seconds, set(modules)


def test_import_turnstile_is_fast_and_loads_no_other_module_of_it() -> None:
    measured = [imported("import turnstile") for _ in range(3)]
    assert min(seconds for seconds, _ in measured) < 0.15
    assert {name for _, modules in measured for name in modules if name.startswith("turnstile.")} == set()


def test_actions_and_clients_load_no_server_code() -> None:
    _, modules = imported(
        "from turnstile import action, command_action, http_action, use, rate, Client, AsyncClient"
    )
    assert {"turnstile.client", "turnstile.worker"} <= modules
    assert {name for name in modules if name.startswith(_SERVER_CODE)} == set()


@pytest.mark.parametrize(
    ("module", "not_loaded"),
    [
        # Loaded at the first list, where it takes a third of the time of a start.
        ("turnstile.executor.service", {"sqlalchemy", "sqlmodel", "alembic"}),
        ("turnstile.worker.service", {"sqlalchemy", "fastapi", "httpx", "rich"}),
        ("turnstile.worker.cli", {"uvicorn", "starlette", "aio_pika", "asyncpg", "httpx", "rich"}),
        # No model of a message or an action.
        (
            "turnstile.executor.cli.executions",
            {"turnstile.common.messages", "turnstile.common.action_definition"},
        ),
    ],
)
def test_a_process_starts_without_the_modules_that_few_runs_need(module: str, not_loaded: set[str]) -> None:
    _, modules = imported(f"import {module}")
    assert modules & not_loaded == set()


def test_no_text_installs_the_package_of_that_name_on_the_public_index() -> None:
    """Its owner is another project."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.splitlines() if name.endswith((".py", ".md", ".toml"))]
    pattern = re.compile(r"pip install (?:-\S+ )*['\"]?turnstile\b(?!/)")
    named = [path.name for path in files if path.is_file() and pattern.search(path.read_text())]
    assert len(files) > 100
    assert named == []


def test_every_error_and_name_of_the_documentation_is_imported_from_turnstile() -> None:
    page = (ROOT / "docs" / "submit.md").read_text()
    table = page.partition("### Errors")[2].partition("##")[0]
    errors = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert {"TurnstileError", "Rejected", "NotReceived", "InvalidResult", "InvalidSetting"} <= {*errors}
    names = ", ".join([*errors, "Request", "Status"])
    ended = run("-c", f"from turnstile import {names}; assert issubclass(NotReceived, TurnstileError)")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [(["--help"], 0), (["executor", "get", "--help"], 0), (["executor", "get", "x"], 2), (["nothing"], 2)],
)
def test_the_umbrella_command_returns_the_exit_code_of_its_part(arguments: list[str], exit_code: int) -> None:
    assert run("-m", "turnstile", *arguments).returncode == exit_code


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package without the harness, as the image holds it."""
    package = tmp_path_factory.mktemp("image") / "turnstile"
    package.mkdir()
    for path in (ROOT / "src" / "turnstile").iterdir():
        if path.name not in (*_HARNESS, "__pycache__"):
            (package / path.name).symlink_to(path.resolve())
    return package.parent


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (
            "stress run",
            "install it from your clone: pip install '/path/to/turnstile[stress]'",
        ),
        (
            "stress --help",
            "install it from your clone: pip install '/path/to/turnstile[stress]'",
        ),
        (
            "dev --actions reports",
            "install it from your clone: pip install '/path/to/turnstile[dev]'",
        ),
        ("executor demo", "run `make demo` in a clone of the repository"),
    ],
)
def test_without_the_harness_its_commands_name_the_remedy(image: Path, arguments: str, remedy: str) -> None:
    ended = run("-m", "turnstile", *arguments.split(), PYTHONPATH=str(image))
    assert ended.returncode == 2
    assert f"is not part of this installation; {remedy}" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments", [["--help"], ["executor", "serve", "--help"], ["worker", "serve", "--help"]]
)
def test_without_the_harness_the_services_work(image: Path, arguments: list[str]) -> None:
    ended = run("-m", "turnstile", *arguments, PYTHONPATH=str(image))
    assert ended.returncode == 0, ended.stderr


@contextmanager
def livez(status: int) -> Iterator[int]:
    """Answer `status` to /livez on a free port."""
    with answering(lambda path, _: (status if path == "/livez" else 404, b"")) as url:
        yield int(url.rpartition(":")[2])


@pytest.mark.parametrize("variable", ["TURNSTILE_HTTP_PORT", "TURNSTILE_WORKER_HTTP_PORT"])
def test_healthcheck_asks_the_service_on_its_port(variable: str) -> None:
    with livez(200) as port:
        assert run("-m", "turnstile", "healthcheck", **{variable: str(port)}).returncode == 0
    with livez(503) as port:
        assert run("-m", "turnstile", "healthcheck", **{variable: str(port)}).returncode == 1
    gone = run("-m", "turnstile", "healthcheck", **{variable: str(port)})
    assert (gone.returncode, gone.stderr.startswith(f"port {port}: ")) == (1, True)


def test_healthcheck_of_an_invalid_port_fails_with_one_line() -> None:
    ended = run("-m", "turnstile", "healthcheck", TURNSTILE_HTTP_PORT="http")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)


def test_healthcheck_imports_no_command_line() -> None:
    statement = "sys.argv = ['turnstile', 'healthcheck']\nfrom turnstile.__main__ import main\n"
    _, modules = imported(f"{statement}try: main()\nexcept SystemExit: pass")
    assert "turnstile.healthcheck" in modules
    assert {"typer", "pydantic", "turnstile.cli"} & modules == set()
