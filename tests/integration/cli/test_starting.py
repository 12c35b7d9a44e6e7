"""Every command starts fast: it imports what it needs, when it is called."""

import json
import subprocess
import sys

import pytest
from typer.main import get_command

from tests.integration.cli.conftest import CommandLines
from turnstile.executor.cli import app
from turnstile.localservers.ports import free_port

_SERVICES = ("fastapi", "uvicorn", "sqlalchemy", "sqlmodel", "alembic", "asyncpg", "aio_pika", "uvloop")
_RUN_ALL = """
import json, sys
from turnstile.executor.cli import app
for arguments in json.loads(sys.argv[1]):
    try:
        app(arguments, prog_name="executor")
    except SystemExit as ended:
        print("exit", ended.code, file=sys.stderr)
print(json.dumps(sorted(sys.modules)))
"""


def modules_after(*commands: list[str]) -> tuple[list[int], set[str]]:
    """Return the exit codes of commands that ran in one process, and what it had imported then."""
    run = subprocess.run(
        [sys.executable, "-c", _RUN_ALL, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"TURNSTILE_API_URL": f"http://127.0.0.1:{free_port()}", "PATH": "/usr/bin"},
    )
    codes = [int(line.split()[1]) for line in run.stderr.splitlines() if line.startswith("exit ")]
    return codes, {module.split(".")[0] for module in json.loads(run.stdout.splitlines()[-1])}


def test_the_help_imports_neither_the_services_nor_the_way_to_the_api() -> None:
    codes, modules = modules_after(["--help"])
    assert codes == [0]
    assert not modules & {*_SERVICES, "httpx", "yaml", "turnstile.executor.cli.submit"}


def test_client_commands_import_nothing_of_the_services() -> None:
    codes, modules = modules_after(["submit", "a"], ["get", "1"], ["cancel", "1"], ["logs", "1"])
    assert codes == [3, 3, 3, 3]
    assert not modules & set(_SERVICES)
    assert "httpx" in modules


def test_the_list_of_commands_says_of_each_what_its_own_help_says() -> None:
    group = get_command(app)
    for name, stand_in in group.commands.items():  # type: ignore[attr-defined]
        command = stand_in.load()
        assert (command.help or "").startswith(stand_in.help.removesuffix(".")), name


def test_a_command_that_is_mistyped_is_answered_with_what_it_may_have_been(alone: CommandLines) -> None:
    ended = alone.executor("cancle", "1")
    assert ended.exit_code == 2
    assert "Did you mean 'cancel'?" in ended.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["get", "x"], "'x' is not the id of an execution; expected a number like 4711"),
        (["watch", "0"], "expected a number like 4711"),
        (["cancel"], "like 'executor cancel 4711', or a filter, like 'executor cancel --action"),
        (["cancel", "1", "--action", "a"], "not both"),
        (["retry", "--metadata", "team"], "expected NAME=VALUE, like tenant=acme"),
        (["list", "--action", "a b"], "like 'reports.render'"),
        (["actions", "limit", "a", "many"], "expected a number from 0 to 1000000, like 4, or 'none'"),
        (["actions", "delete", "a", "--waiting", "maybe"], "'cancel'"),
        (["top", "--sort", "beauty"], "'waiting'"),
        (["list", "--status", "gone"], "'queued'"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_was_expected(
    alone: CommandLines, arguments: list[str], expected: str
) -> None:
    ended = alone.executor(*arguments)
    assert ended.exit_code == 2, ended
    assert expected in ended.err
    assert "Traceback" not in ended.err
