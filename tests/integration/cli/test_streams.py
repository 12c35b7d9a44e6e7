"""Streams that are closed or full, hosts that no codec takes: a sentence and a code, never a traceback."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.integration.cli.conftest import CommandLines
from turnstile.common.command_line import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE
from turnstile.localservers.ports import free_port

_CODE = """
from turnstile.executor.cli import app, main
from turnstile.executor.cli.output import print_json
app.command("say")(lambda: print_json({"said": True}))
main()
"""


def _shell(redirection: str, *arguments: str) -> tuple[int, str, str]:
    """Run a command in a process of its own, with a stream redirected as a shell does it."""
    url = f"http://127.0.0.1:{free_port()}"
    ran = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", _CODE, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"TURNSTILE_API_URL": url, "PATH": "/usr/bin:/bin"},
    )
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [("actions", "apply", "-"), ("submit", "a", "--parameters", "-"), ("submit", "a", "--bulk", "-")],
)
def test_a_closed_stdin_is_said(
    alone: CommandLines, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str]
) -> None:
    monkeypatch.setattr("turnstile.executor.cli.arguments.sys", SimpleNamespace(stdin=None))
    ended = alone.executor(*arguments)
    assert ended.exit_code == EXIT_USAGE
    assert ended.err.startswith("stdin is closed")


def test_a_question_is_not_asked_where_stdin_is_closed() -> None:
    code, _, said = _shell("<&-", "cancel", "--action", "a")
    assert code == EXIT_UNREACHABLE
    assert "Traceback" not in said


def test_a_closed_stdout_is_passed_over() -> None:
    code, _, said = _shell(">&-", "say")
    assert (code, said) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_a_full_disk_is_said() -> None:
    code, _, said = _shell("> /dev/full", "say")
    assert (code, said) == (EXIT_FAILED, "stdout: No space left on device\n")


@pytest.mark.parametrize("host", ["a..b", "xn--a"])
def test_a_host_that_cannot_be_one_is_exit_code_2(alone: CommandLines, host: str) -> None:
    ended = alone.executor("get", "1", TURNSTILE_API_URL=f"http://{host}")
    assert ended.exit_code == EXIT_USAGE
    assert ended.err.startswith("TURNSTILE_API_URL: ")
