"""Settings on the command line: all of them in --help, a wrong one is one line and exit code 2."""

import asyncio
import http.server
import socket
import threading

import pytest

from tests.integration.cli.conftest import CommandLines
from turnstile.common.command_line import EXIT_UNREACHABLE, EXIT_USAGE, environment_name
from turnstile.executor.settings import ExecutorSettings
from turnstile.localservers.ports import free_port
from turnstile.migrations import is_current
from turnstile.worker.settings import WorkerSettings


def test_help_of_serve_shows_every_setting_of_the_executor(alone: CommandLines) -> None:
    shown = alone.executor("serve", "--help").out.split()
    assert [name for name in ExecutorSettings.model_fields if f"{environment_name(name)}]" not in shown] == []


def test_help_of_serve_shows_every_setting_of_the_worker(alone: CommandLines) -> None:
    shown = alone.worker("serve", "--help").out.split()
    assert [name for name in WorkerSettings.model_fields if f"{environment_name(name)}]" not in shown] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TURNSTILE_HTTP_PORT", "banana"),
        ("TURNSTILE_LEASE_DURATION", "soon"),
        ("TURNSTILE_DATABASE_URL", "mysql://x"),
        ("TURNSTILE_INSECURE", "perhaps"),
        ("TURNSTILE_HEARTBEAT_INTERVAL", "1h"),
    ],
)
def test_a_wrong_setting_is_named_and_ends_the_command_with_code_2(
    alone: CommandLines, name: str, value: str
) -> None:
    ended = alone.executor("serve", **{name: value})
    assert ended.exit_code == EXIT_USAGE
    assert name in ended.err


@pytest.mark.parametrize("pools", ["retry", "gpu;x", "gpu," + "x" * 65])
def test_a_pool_that_cannot_be_called_so_ends_the_worker_with_code_2(alone: CommandLines, pools: str) -> None:
    ended = alone.worker(
        "serve", "--actions", "tests.integration.cli.served_actions", TURNSTILE_WORKER_POOLS=pools
    )
    assert ended.exit_code == EXIT_USAGE
    assert "TURNSTILE_WORKER_POOLS" in ended.err
    assert "cannot name a pool" in ended.err


def test_an_option_is_stronger_than_the_environment(alone: CommandLines) -> None:
    ended = alone.executor("serve", "--http-port", "banana", TURNSTILE_HTTP_PORT="8000")
    assert "TURNSTILE_HTTP_PORT: " in ended.err


def test_the_executor_does_not_serve_other_machines_without_a_token(alone: CommandLines) -> None:
    ended = alone.executor("serve", TURNSTILE_HTTP_HOST="0.0.0.0")
    assert ended.exit_code == EXIT_USAGE
    assert ended.err.startswith("TURNSTILE_API_TOKENS: 0.0.0.0 can be reached from other machines")


def test_a_worker_without_actions_to_serve_ends_with_code_2(alone: CommandLines) -> None:
    for target in ("no.such.module", "tests.integration.cli", "tests.integration.cli.served_actions:nothing"):
        ended = alone.worker("serve", "--actions", target)
        assert (ended.exit_code, len(ended.err.splitlines())) == (EXIT_USAGE, 1)
        assert ended.err.startswith(f"--actions {target}: ")


def test_a_port_that_is_taken_is_named_before_the_worker_starts(alone: CommandLines) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = alone.worker(
            "serve", "--actions", "tests.integration.cli.served_actions", TURNSTILE_WORKER_HTTP_PORT=port
        )
    assert ended.exit_code == EXIT_USAGE
    assert "TURNSTILE_WORKER_HTTP_PORT: cannot listen on 127.0.0.1" in ended.err


def test_the_worker_shows_what_a_module_declares(alone: CommandLines) -> None:
    ended = alone.worker("actions", "--actions", "tests.integration.cli.served_actions", "--json")
    assert [definition["ref"] for definition in ended.json] == ["cli.add", "cli.fail", "cli.talk"]
    table = alone.worker("actions", "--actions", "tests.integration.cli.served_actions").out
    assert [line.split()[:3] for line in table.splitlines()[1:]] == [
        ["cli.add", "python", "none"],
        ["cli.fail", "python", "none"],
        ["cli.talk", "python", "none"],
    ]


def test_migrate_gives_up_on_a_database_that_stays_away_and_keeps_its_password(alone: CommandLines) -> None:
    url = f"postgresql://somebody:secret@127.0.0.1:{free_port()}/turnstile"
    ended = alone.executor("migrate", "--wait", "200ms", TURNSTILE_DATABASE_URL=url)
    assert ended.exit_code == EXIT_UNREACHABLE
    assert "TURNSTILE_DATABASE_URL" in ended.err
    assert "secret" not in ended.err


def test_migrate_brings_an_empty_database_up_to_date(alone: CommandLines, empty_database_url: str) -> None:
    for _ in range(2):
        assert alone.executor("migrate", TURNSTILE_DATABASE_URL=empty_database_url).exit_code == 0
    assert asyncio.run(is_current(empty_database_url))


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "1"),
        ("list",),
        ("submit", "a"),
        ("submit", "a", "--wait"),
        ("cancel", "1"),
        ("actions", "list"),
        ("queue", "stats", "a"),
        ("workers", "list"),
    ],
)
def test_an_api_that_is_not_there_is_exit_code_3(alone: CommandLines, arguments: tuple[str, ...]) -> None:
    ended = alone.executor(*arguments)
    assert (ended.exit_code, ended.out) == (EXIT_UNREACHABLE, "")
    assert "TURNSTILE_API_URL" in ended.err


@pytest.mark.parametrize(
    "url",
    ["ftp://host", "127.0.0.1:8000", "http://", "http://u:p@host", "http://host:x", "http://host:0", ""],
)
def test_an_api_url_that_cannot_be_one_is_exit_code_2(alone: CommandLines, url: str) -> None:
    ended = alone.executor("list", "--api-url", url)
    assert ended.exit_code == EXIT_USAGE
    assert ended.err.startswith("TURNSTILE_API_URL: ")


def test_another_server_behind_the_api_url_is_exit_code_3(alone: CommandLines) -> None:
    class Stranger(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}" if "json" in self.path else b"<html>")

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        answers = [alone.executor("get", "1", "--api-url", u) for u in (url, f"{url}/json")]
        server.shutdown()
        thread.join()
    assert [(answer.exit_code, "TURNSTILE_API_URL" in answer.err) for answer in answers] == [(3, True)] * 2
