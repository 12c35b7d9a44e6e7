"""Commands start fast, reject invalid input with an example, and never show a traceback."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.main import get_command

from tests.integration.cli.conftest import CommandLines
from turnstile.cli import executor_app
from turnstile.common.exit_codes import ExitCode
from turnstile.localservers.ports import free_port

_SERVICES = ("fastapi", "uvicorn", "sqlalchemy", "sqlmodel", "alembic", "asyncpg", "aio_pika", "uvloop")
_RUN_ALL = """
import json, sys
from turnstile.executor.cli import app
for arguments in json.loads(sys.argv[1]):
    try:
        app(arguments, prog_name="executor")
    except SystemExit as ended:
        print(json.dumps([ended.code, sorted(sys.modules)]), file=sys.stderr)
"""


def test_help_imports_no_command_and_client_commands_no_service() -> None:
    commands = (["--help"], ["submit", "a"], ["get", "1"], ["cancel", "1"], ["logs", "1"])
    run = subprocess.run(
        [sys.executable, "-c", _RUN_ALL, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"TURNSTILE_API_URL": f"http://127.0.0.1:{free_port()}", "PATH": "/usr/bin"},
    )
    ended = [json.loads(line) for line in run.stderr.splitlines() if line.startswith("[")]
    assert [code for code, _ in ended] == [0, 3, 3, 3, 3]
    of_help, of_all = {*ended[0][1]}, {*ended[-1][1]}
    assert not of_help & {*_SERVICES, "httpx", "yaml", "turnstile.executor.cli.submit"}
    assert not of_all & {*_SERVICES}
    assert "httpx" in of_all


def test_the_summary_of_a_command_is_the_first_sentence_of_its_help() -> None:
    group = get_command(executor_app)
    for name, placeholder in group.commands.items():  # type: ignore[attr-defined]
        command = placeholder.load()
        assert (command.help or "").startswith(placeholder.help.removesuffix(".")), name


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["get", "x"], "invalid execution id 'x'; expected a number like 4711"),
        (["watch", "0"], "expected a number like 4711"),
        (["cancel"], "like 'executor cancel 4711', or a filter, like 'executor cancel --action"),
        (["cancel", "1", "--action", "a"], "not both"),
        (["retry", "--metadata", "team"], "expected NAME=VALUE, like customer_id=7"),
        (["list", "--action", "a b"], "like 'reports.render'"),
        (["actions", "limit", "a", "many"], "expected a number from 0 to 1000000, like 4, or 'none'"),
        (["actions", "delete", "a", "--waiting", "maybe"], "'cancel'"),
        (["top", "--sort", "beauty"], "'waiting'"),
        (["list", "--status", "failed,timeout"], "for several, repeat the option"),
    ],
)
def test_an_invalid_argument_is_answered_with_an_example(
    alone: CommandLines, arguments: list[str], expected: str
) -> None:
    ended = alone.executor(*arguments)
    assert ended.exit_code == 2, ended
    assert expected in ended.err
    assert "Traceback" not in ended.err


_SAY = """
from turnstile.executor.cli import app, main
from turnstile.executor.cli.output import print_json
app.command("say")(lambda: print_json({"said": True}))
main()
"""


def _shell(redirection: str, *arguments: str) -> tuple[int, str, str]:
    """Run a command in a process of its own, with a stream redirected as a shell does it."""
    url = f"http://127.0.0.1:{free_port()}"
    ran = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", _SAY, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            "TURNSTILE_API_URL": url,
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        },
    )
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [("actions", "apply", "-"), ("submit", "a", "--parameters", "-"), ("submit", "a", "--bulk", "-")],
)
def test_a_closed_stdin_is_an_error(
    alone: CommandLines, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str]
) -> None:
    monkeypatch.setattr("turnstile.executor.cli.arguments.sys", SimpleNamespace(stdin=None))
    ended = alone.executor(*arguments)
    assert ended.exit_code == ExitCode.USAGE
    assert ended.err.startswith("stdin is closed")


def test_a_closed_stdin_prompts_for_nothing() -> None:
    code, _, errors = _shell("<&-", "cancel", "--action", "a")
    assert code == ExitCode.USAGE
    assert "add --yes" in errors
    assert "Traceback" not in errors


def test_a_closed_stdout_is_no_error() -> None:
    code, _, errors = _shell(">&-", "say")
    assert (code, errors) == (0, "")


@pytest.mark.parametrize("arguments", [("say",), ("--help",), ("list", "--help")])
def test_a_closed_pipe_ends_a_command_quietly_with_the_code_of_the_shell(arguments: Sequence[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ran = subprocess.run(
            [sys.executable, "-c", _SAY, *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (ran.returncode, ran.stderr) == (ExitCode.PIPE_CLOSED, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_a_full_disk_is_an_error() -> None:
    code, _, errors = _shell("> /dev/full", "say")
    assert (code, errors) == (ExitCode.FAILED, "stdout: No space left on device\n")


def test_output_of_a_module_is_not_mixed_with_the_json(
    alone: CommandLines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "talking_actions.py").write_text(
        "from turnstile import action\nprint('hello')\n\n@action('talk.once')\ndef once() -> None: ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    ended = alone.worker("actions", "--actions", "talking_actions", "--json")
    assert [definition["ref"] for definition in ended.json] == ["talk.once"]
    assert "hello" in ended.err
