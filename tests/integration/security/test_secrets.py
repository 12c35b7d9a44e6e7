"""Secrets come from the environment or a file; they are no arguments, and no message shows them."""

from itertools import product
from pathlib import Path
from typing import Final

import pytest

from tests.integration.cli.conftest import SERVED_ACTIONS, CommandLines, alone, no_settings
from turnstile.client.errors import InvalidSetting
from turnstile.client.settings import client_settings
from turnstile.common.api_token import api_token
from turnstile.common.broker.connection import BrokerConnection, BrokerTimeouts
from turnstile.common.broker.errors import BrokerUnavailable
from turnstile.common.exit_codes import ExitCode

__all__ = ["alone", "no_settings"]

_URLS = {
    "--database-url": "postgresql://u:s3cret@127.0.0.1:1/d",
    "--amqp-url": "amqps://u:s3cret@127.0.0.1:1/v",
}


@pytest.mark.parametrize("option", _URLS)
def test_a_password_in_an_option_is_refused(alone: CommandLines, option: str) -> None:
    ends = [alone.executor("serve", option, _URLS[option])]
    if option != "--database-url":
        # A worker has no database.
        ends.append(alone.worker("serve", "--actions", SERVED_ACTIONS, option, _URLS[option]))
    for ended in ends:
        assert ended.exit_code == ExitCode.USAGE
        assert "set TURNSTILE_" in ended.err
        assert "s3cret" not in ended.err


@pytest.mark.parametrize("option", ["--api-tokens", "--api-token"])
def test_a_token_is_no_option_and_the_help_names_its_variable(alone: CommandLines, option: str) -> None:
    command = ["serve"] if option == "--api-tokens" else ["list"]
    assert alone.executor(*command, option, "s3cret").exit_code == ExitCode.USAGE
    shown = alone.executor(*command, "--help").out
    assert f"{option} " not in shown
    variable = f"TURNSTILE_{option[2:].upper().replace('-', '_')}"
    assert f"set it with the environment variable {variable}." in " ".join(shown.split())


def test_a_callers_token_is_read_from_the_environment_or_else_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-a-file\n")
    assert api_token({}) is None
    assert api_token({"TURNSTILE_API_TOKEN_FILE": str(file)}) == "from-a-file"
    both = {"TURNSTILE_API_TOKEN": "from-the-environment", "TURNSTILE_API_TOKEN_FILE": str(file)}
    assert api_token(both) == "from-the-environment"


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("", "there is no token in it"), ("s3cret s3cret", "not a token")],
)
def test_a_file_that_holds_no_token_is_named(
    alone: CommandLines, tmp_path: Path, content: str | None, message: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    ended = alone.executor("list", TURNSTILE_API_TOKEN_FILE=str(file))
    assert ended.exit_code == ExitCode.USAGE
    assert ended.err.startswith("TURNSTILE_API_TOKEN_FILE: ")
    assert message in ended.err
    assert "s3cret" not in ended.err


_SECRET: Final = "s3cret"
_PARTS: Final = [
    *("{s}", "a/{s}", "a?{s}", "a#{s}", "a@{s}", "1/{s}", "1?{s}", "1#{s}", "a@1/{s}", "a@b?x={s}"),
    *("[{s}", "a]{s}", "[{s}]", "%{s}", "a%4{s}", "a:{s}", "a,{s}", "a,amqp://{s}", "\u2100{s}", "\u00e9{s}"),
    *(
        "'{s}",
        '"{s}',
        "a {s}",
        "a&{s}",
        "a&b={s}",
        "\t{s}",
        "{s}/",
        "{s}?",
        "{s}#",
        "{s}[",
        "{s}\u2100",
        "/{s}/d?sslmode={s}",
    ),
]
"""Passwords, each with characters of URLs that are not percent-encoded."""
_PLACES: Final = ["u:{}@127.0.0.1:1/d", "{}@127.0.0.1:1/d", "u:{}", "u:{}/d", "u:p@127.0.0.1:{}/d"]
_PLACES_OF_LIBPQ: Final = [*_PLACES, "u@127.0.0.1:1/d?password={}", "u@127.0.0.1:1/d?pass%77ord={}"]


def _urls(scheme: str, places: list[str]) -> list[str]:
    passwords = [part.replace("{s}", _SECRET) for part in _PARTS]
    return [f"{scheme}://{place.format(password)}" for place, password in product(places, passwords)]


def _is_no_password(url: str) -> bool:
    """Whether the secret is the name of the user, of the host, or of the database behind a host named 1."""
    account, at, _ = url.partition("://")[2].rpartition("@")
    before, _, behind = url.partition(_SECRET)
    is_behind = before.endswith(("@", "1/")) and "@" not in behind
    return is_behind or (bool(at) and _SECRET in account.partition(":")[0])


@pytest.mark.parametrize("scheme", ["postgresql", "http", _SECRET])
def test_no_part_of_a_database_url_is_printed_by_migrate(
    alone: CommandLines, caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    for url in _urls(scheme, _PLACES_OF_LIBPQ):
        if _is_no_password(url):
            continue
        ended = alone.executor("migrate", "--wait", "20ms", TURNSTILE_DATABASE_URL=url)
        assert ended.exit_code in (ExitCode.USAGE, ExitCode.UNREACHABLE), url
        assert "TURNSTILE_DATABASE_URL" in ended.err, url
        assert _SECRET not in ended.out + ended.err + caplog.text, url


@pytest.mark.parametrize(
    ("variable", "scheme"),
    [
        ("TURNSTILE_MANAGEMENT_URL", "http"),
        ("TURNSTILE_MANAGEMENT_URL", _SECRET),
        ("TURNSTILE_AMQP_URL", "amqp"),
        ("TURNSTILE_DATABASE_URL", "postgresql"),
    ],
)
def test_no_part_of_an_administrators_url_is_printed(
    alone: CommandLines, caplog: pytest.LogCaptureFixture, tmp_path: Path, variable: str, scheme: str
) -> None:
    urls = {
        "TURNSTILE_DATABASE_URL": "postgresql://u:p@127.0.0.1:1/d",
        "TURNSTILE_AMQP_URL": "amqp://u:p@127.0.0.1:1/d",
    }
    for url in _urls(scheme, _PLACES):
        if _is_no_password(url):
            continue
        command = ["setup-permissions", "--dry-run", "--credentials", str(tmp_path)]
        ended = alone.executor(*command, **{**urls, variable: url})
        assert ended.exit_code != 0, url
        assert _SECRET not in ended.out + ended.err + caplog.text, url


@pytest.mark.parametrize(
    ("variable", "scheme"),
    [("TURNSTILE_AMQP_URL", "amqp"), ("TURNSTILE_API_URL", "http"), ("TURNSTILE_OTLP_ENDPOINT", "http")],
)
def test_a_worker_prints_no_part_of_a_url_that_it_refuses(
    alone: CommandLines, variable: str, scheme: str
) -> None:
    refused = 0
    for url in _urls(scheme, _PLACES[:1] + _PLACES[2:]):
        # Without an action a worker ends, whether it has accepted the URL or not. A provider of spans would
        # stay in this process.
        settings = {variable: url, "OTEL_SDK_DISABLED": "true"}
        ended = alone.worker("serve", "--actions", "no_such_module", **settings)
        assert ended.exit_code == ExitCode.USAGE, (url, ended)
        assert _SECRET not in ended.out + ended.err, url
        refused += ended.err.startswith(f"{variable}: ")
    assert refused > len(_PARTS)


@pytest.mark.parametrize(
    ("variable", "scheme"), [("TURNSTILE_AMQP_URL", "amqp"), ("TURNSTILE_API_URL", "http")]
)
def test_a_client_names_no_part_of_a_url_that_it_refuses(variable: str, scheme: str) -> None:
    errors = []
    for url in _urls(scheme, _PLACES):
        try:
            client_settings({variable: url})
        except InvalidSetting as error:
            errors.append(str(error))
    assert len(errors) > len(_PARTS)
    assert _SECRET not in " ".join(errors)


async def test_no_part_of_a_broker_url_is_logged_while_the_broker_cannot_be_reached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for url in _urls("amqp", _PLACES):
        if _is_no_password(url):
            continue
        with pytest.raises((ValueError, BrokerUnavailable)) as raised:
            await BrokerConnection(url, name="test", timeouts=BrokerTimeouts()).connect()
        shown = f"{raised.value}{caplog.text}{[vars(record) for record in caplog.records]}"
        assert _SECRET not in shown, url


@pytest.mark.parametrize("variable", ["TURNSTILE_DATABASE_URL", "TURNSTILE_AMQP_URL"])
def test_the_remedy_for_a_password_with_characters_of_urls_is_to_percent_encode_it(
    alone: CommandLines, variable: str
) -> None:
    scheme = "amqp" if "AMQP" in variable else "postgresql"
    for password in ("a/s3cret", "a?s3cret", "a#s3cret", "[s3cret", "1/s3cret"):
        ended = alone.executor("serve", **{variable: f"{scheme}://u:{password}@127.0.0.1:1/d"})
        assert ended.exit_code == ExitCode.USAGE
        assert "percent-encode the password" in ended.err
