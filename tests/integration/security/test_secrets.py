"""Secrets come from the environment or a file; they are no arguments, and no message shows them."""

from pathlib import Path

import pytest

from tests.integration.cli.conftest import SERVED_ACTIONS, CommandLines, alone, no_settings
from turnstile.common.api_token import api_token
from turnstile.common.cli import EXIT_USAGE

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
        assert ended.exit_code == EXIT_USAGE
        assert "set TURNSTILE_" in ended.err
        assert "s3cret" not in ended.err


@pytest.mark.parametrize("option", ["--api-tokens", "--api-token"])
def test_a_token_is_no_option_and_the_help_names_its_variable(alone: CommandLines, option: str) -> None:
    command = ["serve"] if option == "--api-tokens" else ["list"]
    assert alone.executor(*command, option, "s3cret").exit_code == EXIT_USAGE
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
    assert ended.exit_code == EXIT_USAGE
    assert ended.err.startswith("TURNSTILE_API_TOKEN_FILE: ")
    assert message in ended.err
    assert "s3cret" not in ended.err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TURNSTILE_API_TOKENS", "ci:sumbit:s3cret"),
        ("TURNSTILE_DATABASE_URL", "postgresql://u:s3cret@host:port/d"),
        ("TURNSTILE_AMQP_URL", "amqp://u:s3cret@:x/"),
    ],
)
def test_a_wrong_setting_is_named_without_its_secret(alone: CommandLines, name: str, value: str) -> None:
    ended = alone.executor("serve", **{name: value})
    assert ended.exit_code == EXIT_USAGE
    assert ended.err.startswith(f"{name}: ")
    assert "s3cret" not in ended.err
