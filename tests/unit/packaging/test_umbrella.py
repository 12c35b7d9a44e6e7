"""`import turnstile` and the command `turnstile`: lazy, and clear about what is not installed."""

import json
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

import turnstile
from tests.support.commands import ended, in_a_fresh_process
from tests.support.http_server import answering
from turnstile.healthcheck import healthcheck

ROOT = Path(__file__).parents[3]
_HARNESS = ("stress", "localservers")
_SERVER_CODE = (
    "fastapi", "uvicorn", "starlette", "sqlalchemy", "alembic", "asyncpg", "turnstile.executor"
)  # fmt: skip


def imported(*statements: str) -> list[set[str]]:
    """Return the modules that a fresh process has loaded after each of these statements."""
    shown = "\nprint(json.dumps(sorted(sys.modules)))\n"
    output = in_a_fresh_process("-c", "import json, sys\n" + "".join(each + shown for each in statements))
    return [set(json.loads(line)) for line in output.splitlines()]


def test_importing_loads_nothing_else_of_turnstile_and_using_it_no_server_code() -> None:
    bare, used = imported(
        "import turnstile",
        "from turnstile import action, command_action, http_action, use, rate, Client, AsyncClient",
    )
    assert [name for name in bare if name.startswith("turnstile.")] == []
    assert {"turnstile.client", "turnstile.worker"} <= used
    assert [name for name in used if name.startswith(_SERVER_CODE)] == []


@pytest.mark.parametrize(
    ("module", "not_loaded"),
    [
        (
            "turnstile.client",
            {"fastapi", "starlette", "uvicorn", "sqlalchemy", "sqlmodel", "alembic", "asyncpg", "typer"}
            | {"jsonschema_rs", "pydantic_settings", "prometheus_client", "yaml", "uvloop"},
        ),
        # Loaded at the first list, where it takes a third of the time of a start.
        ("turnstile.executor.service", {"sqlalchemy", "sqlmodel", "alembic"}),
        ("turnstile.worker.service", {"asyncpg", "sqlalchemy", "fastapi", "httpx", "rich", "yaml"}),
        ("turnstile.worker.cli", {"uvicorn", "starlette", "aio_pika", "asyncpg", "httpx", "rich"}),
        # No model of a message or an action.
        (
            "turnstile.executor.cli.executions",
            {"turnstile.common.messages", "turnstile.common.action_definition"},
        ),
    ],
)
def test_a_process_starts_without_the_modules_that_few_runs_need(module: str, not_loaded: set[str]) -> None:
    (modules,) = imported(f"import {module}")
    assert modules & not_loaded == set()


def test_no_text_installs_the_distribution_called_turnstile() -> None:
    """It belongs to another project."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.splitlines() if name.endswith((".py", ".md", ".toml"))]
    pattern = re.compile(r"pip install (?:-\S+ )*['\"]?turnstile\b(?![/-])")
    named = [path.name for path in files if path.is_file() and pattern.search(path.read_text())]
    assert len(files) > 100
    assert named == []


def test_every_error_and_name_of_the_documentation_is_imported_from_turnstile() -> None:
    page = (ROOT / "docs" / "submit.md").read_text()
    table = page.partition("### Errors")[2].partition("##")[0]
    errors = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert {"TurnstileError", "Rejected", "NotReceived", "InvalidResult", "InvalidSetting"} <= {*errors}
    assert all(issubclass(getattr(turnstile, name), turnstile.TurnstileError) for name in errors)
    assert all(hasattr(turnstile, name) for name in ("Request", "Status"))


def test_the_umbrella_command_returns_the_exit_code_of_its_part() -> None:
    commands = ("--help", "executor get --help", "executor get x", "nothing")
    assert [code for code, _ in ended(*commands)] == [0, 0, 2, 2]


def test_without_the_harness_its_commands_name_the_remedy_and_the_services_work(tmp_path: Path) -> None:
    package = tmp_path / "turnstile"
    package.mkdir()
    for path in (ROOT / "src" / "turnstile").iterdir():
        if path.name not in (*_HARNESS, "__pycache__"):
            (package / path.name).symlink_to(path.resolve())
    extras = {
        "stress run": ("turnstile stress", "stress"),
        "stress --help": ("turnstile stress", "stress"),
        "dev --actions reports": ("turnstile dev", "dev"),
        "executor demo": ("turnstile executor demo", "stress"),
    }
    working = ("--help", "executor serve --help", "worker serve --help")
    # As in the image.
    *refused, top, executor, worker = ended(*extras, *working, PYTHONPATH=str(tmp_path))
    for (code, errors), (command, extra) in zip(refused, extras.values(), strict=True):
        assert (code, len(errors.splitlines())) == (2, 1)
        assert f"`{command}` needs the extra: pip install 'turnstile-scheduler[{extra}]'" in errors
    assert [top, executor, worker] == [(0, "")] * 3


@pytest.mark.parametrize(
    ("program", "extra"), [("main", "cli"), ("executor", "executor"), ("worker", "worker")]
)
def test_a_program_without_its_packages_names_the_extra(program: str, extra: str) -> None:
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.modules['typer'] = None; from turnstile.__main__ import {program}; {program}()",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    name = "turnstile" if program == "main" else program
    sentence = f"`{name}` needs the extra: pip install 'turnstile-scheduler[{extra}]' (typer is missing)\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", sentence)


def test_a_command_without_its_packages_names_the_extra() -> None:
    start = "import sys; sys.modules['asyncpg'] = None; from turnstile.__main__ import executor; executor()"
    for command in ("serve", "migrate", "doctor", "tokens"):
        ran = subprocess.run(
            [sys.executable, "-c", start, command], capture_output=True, text=True, check=False
        )
        sentence = f"`executor {command}` needs the extra: pip install 'turnstile-scheduler[executor]' ("
        assert (ran.returncode, ran.stderr.partition("asyncpg")[0]) == (2, sentence)


def test_the_version_is_that_of_the_distribution() -> None:
    installed = version("turnstile-scheduler")
    assert turnstile.__version__ == installed
    for program in ("turnstile.cli", "turnstile.executor.cli", "turnstile.worker.cli"):
        result = CliRunner().invoke(import_module(program).app, ["--version"])
        assert (result.exit_code, result.stdout) == (0, f"turnstile {installed}\n")


def exit_of_healthcheck(monkeypatch: pytest.MonkeyPatch, variable: str, port: object) -> object:
    """Return what the program exits with: None is exit code 0, a text is printed and 1."""
    for each in ("TURNSTILE_HTTP_PORT", "TURNSTILE_WORKER_HTTP_PORT"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(variable, str(port))
    try:
        healthcheck()
    except SystemExit as failed:
        return failed.code
    return None


@pytest.mark.parametrize("variable", ["TURNSTILE_HTTP_PORT", "TURNSTILE_WORKER_HTTP_PORT"])
def test_healthcheck_asks_the_service_on_its_port(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    status = 200
    with answering(lambda path, _: (status if path == "/livez" else 404, b"")) as url:
        port = url.rpartition(":")[2]
        assert exit_of_healthcheck(monkeypatch, variable, port) is None
        status = 503
        unhealthy = exit_of_healthcheck(monkeypatch, variable, port)
    assert unhealthy == f"port {port}: /livez responded with status 503"
    assert str(exit_of_healthcheck(monkeypatch, variable, port)).startswith(f"port {port}: ")
    assert str(exit_of_healthcheck(monkeypatch, variable, "http")).startswith("port http: ")


def test_healthcheck_imports_no_command_line() -> None:
    statement = "sys.argv = ['turnstile', 'healthcheck']\nfrom turnstile.__main__ import main\n"
    (modules,) = imported(f"{statement}try: main()\nexcept SystemExit: pass")
    assert "turnstile.healthcheck" in modules
    assert {"typer", "pydantic", "turnstile.cli"} & modules == set()
