"""Settings on the command line: --help lists all, an invalid one is one line and exit code 2."""

import socket

import httpx
import pytest

import turnstile
from tests.integration.cli.conftest import SERVED_ACTIONS, CommandLines
from tests.support.http_server import answering
from turnstile.common.broker.errors import BLOCKED
from turnstile.common.cli import CommandFailed, environment_name
from turnstile.common.exit_codes import ExitCode
from turnstile.common.http import listen
from turnstile.executor.settings import ExecutorSettings
from turnstile.worker.health import health_app
from turnstile.worker.settings import WorkerSettings


def test_help_of_serve_lists_every_setting(alone: CommandLines) -> None:
    for run, settings in ((alone.executor, ExecutorSettings), (alone.worker, WorkerSettings)):
        # An option ends with "[env var: NAME]"; a secret has no option: "... environment variable NAME."
        shown = {
            word.rstrip("].") for word in run("serve", "--help").out.split() if word.endswith(("]", "."))
        }
        assert {environment_name(name) for name in settings.model_fields} <= shown


@pytest.mark.parametrize("pools", ["retry", "gpu;x", "gpu," + "x" * 65])
def test_an_invalid_pool_name_is_exit_code_2(alone: CommandLines, pools: str) -> None:
    ended = alone.worker("serve", "--actions", SERVED_ACTIONS, TURNSTILE_WORKER_POOLS=pools)
    assert ended.exit_code == ExitCode.USAGE
    assert "TURNSTILE_WORKER_POOLS" in ended.err
    assert "cannot name a pool" in ended.err


def test_the_executor_does_not_serve_other_machines_without_a_token(
    alone: CommandLines, database_url: str, empty_database_url: str
) -> None:
    for url in (database_url, empty_database_url):
        ended = alone.executor("serve", TURNSTILE_HTTP_HOST="0.0.0.0", TURNSTILE_DATABASE_URL=url)
        assert ended.exit_code == ExitCode.USAGE
        assert ended.err.startswith("TURNSTILE_API_TOKENS: 0.0.0.0 can be reached from other machines")


def test_a_port_in_use_is_named_before_the_worker_starts(alone: CommandLines) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = str(occupied.getsockname()[1])
        ended = alone.worker("serve", "--actions", SERVED_ACTIONS, TURNSTILE_WORKER_HTTP_PORT=port)
    assert ended.exit_code == ExitCode.USAGE
    assert "TURNSTILE_WORKER_HTTP_PORT: cannot listen on 127.0.0.1" in ended.err
    assert "choose another port" in ended.err


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("actions", "limit", "a.b", "-1"), "invalid limit '-1'; expected a number from 0 to "),
        (("get", "-1"), "invalid execution id '-1'; expected a number like 4711"),
        (
            ("tokens", "revoke", "-1"),
            "invalid token id '-1'; expected a number like 7, as 'executor tokens list' shows",
        ),
        (("webhooks", "replay", "-1"), "invalid execution id '-1'; expected a number like 4711"),
        (("workers", "drain", "-1"), "No such option: -1"),
        (("list", "--acton", "a"), "No such option: --acton. Did you mean --action?"),
        (("list", "--created_after", "a"), "Did you mean --created-after?"),
        (("actions", "keys", "set", "a.b", "7", "--max", "3"), "Did you mean --max-concurrent?"),
        (("cancel", "-y1"), "No such option: -1"),
        (("list", "--xyzzy"), "No such option: --xyzzy\n"),
        (("list", "-x"), "No such option: -x\n"),
        (("canel",), "No such command 'canel'. Did you mean 'cancel'?"),
        (("dead-letter", "list"), "Did you mean 'dead-letters'?"),
        (("actions", "lst"), "No such command 'lst'. Did you mean 'list'?"),
    ],
)
def test_an_unknown_option_or_command_is_explained(
    alone: CommandLines, arguments: tuple[str, ...], remedy: str
) -> None:
    ended = alone.executor(*arguments)
    assert ended.exit_code == ExitCode.USAGE
    assert remedy in ended.err


def test_a_service_warns_once_of_each_unknown_variable_and_hides_its_value(alone: CommandLines) -> None:
    wrong = {"TURNSTILE_RETENTON_AGE": "hidden-1", "TURNSTILE_WEBHOK_SECRET": "hidden-2"}
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = str(occupied.getsockname()[1])
        settings = {"TURNSTILE_HTTP_PORT": port, "TURNSTILE_API_URL": "http://127.0.0.1:1", **wrong}
        served = alone.executor("serve", **settings)
        worker = alone.worker("serve", "--actions", "no.such.module", **settings)
    for ended in (served, worker):
        lines = [line for line in ended.err.splitlines() if "unknown_setting" in line]
        assert ["TURNSTILE_RETENTON_AGE" in line for line in lines] == [True, False]
        assert "TURNSTILE_RETENTION_AGE" in lines[0]
        assert "TURNSTILE_WEBHOOK_SECRET" in lines[1]
        assert "hidden" not in ended.err


@pytest.mark.parametrize(
    "command",
    [
        *("executor migrate", "executor actions keys list", "executor demo", "stress run", "dev"),
        *("worker actions", "healthcheck"),
    ],
)
def test_every_command_names_each_unknown_variable_once_before_it_starts(command: str) -> None:
    wrong = {"TURNSTILE_RETENTON_AGE": "hidden", "TURNSTILE_HTTP_PORT": "1"}
    # The unknown option ends the command before it does anything.
    ended = CommandLines(environment={}).umbrella(*command.split(), "--xyzzy", **wrong)
    assert ended.exit_code == ExitCode.USAGE
    expected = (
        "warning: TURNSTILE_RETENTON_AGE: no part of Turnstile reads this variable; did you mean "
        "TURNSTILE_RETENTION_AGE?"
    )
    assert [line for line in ended.err.splitlines() if "RETENTON" in line] == [expected]
    assert "hidden" not in ended.err


@pytest.mark.parametrize("arguments", [("get", "1"), ("submit", "a", "--wait")])
def test_an_unreachable_api_is_exit_code_3(alone: CommandLines, arguments: tuple[str, ...]) -> None:
    ended = alone.executor(*arguments)
    assert (ended.exit_code, ended.out) == (ExitCode.UNREACHABLE, "")
    assert "TURNSTILE_API_URL" in ended.err


@pytest.mark.parametrize("url", ["ftp://host", "127.0.0.1:8000", "http://", "http://u:p@host", ""])
def test_an_invalid_api_url_is_exit_code_2(alone: CommandLines, url: str) -> None:
    ended = alone.executor("list", "--api-url", url)
    assert ended.exit_code == ExitCode.USAGE
    assert ended.err.startswith("TURNSTILE_API_URL: ")


def test_another_server_behind_the_api_url_is_exit_code_3(alone: CommandLines) -> None:
    with answering(lambda path, _: (200, b"{}" if "json" in path else b"<html>")) as url:
        answers = [alone.executor("get", "1", "--api-url", u) for u in (url, f"{url}/json")]
    assert [(answer.exit_code, "TURNSTILE_API_URL" in answer.err) for answer in answers] == [(3, True)] * 2


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "a..b"])
def test_a_host_of_another_machine_names_the_host_setting(host: str) -> None:
    with pytest.raises(CommandFailed, match=f"TURNSTILE_HTTP_HOST: cannot listen on {host}: ") as failed:
        listen(host, 0, settings="TURNSTILE_HTTP")
    assert failed.value.exit_code == ExitCode.USAGE
    assert "an address of this machine" in failed.value.message
    assert "PORT" not in failed.value.message


async def test_readyz_of_a_worker_names_the_unreachable_server_and_a_blocked_broker() -> None:
    parts: dict[str, str | None] = {"database": None, "broker": "connection refused"}
    degraded: dict[str, str] = {}
    transport = httpx.ASGITransport(app=health_app(lambda: parts, lambda: degraded))
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as http:
        answer = await http.get("/readyz")
        assert answer.headers["content-type"] == "application/problem+json"
        assert (answer.status_code, answer.json()["detail"]) == (503, "broker: connection refused")
        assert (await http.get("/livez")).status_code == 200
        parts["broker"] = None
        assert (await http.get("/readyz")).json() == {
            "status": "ready",
            "version": turnstile.__version__,
            "parts": parts,
        }
        degraded["broker"] = BLOCKED
        answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["degraded"]) == (200, {"broker": BLOCKED})
