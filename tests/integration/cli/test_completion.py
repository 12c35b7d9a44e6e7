"""What a completion asks the API with: the same settings as a command."""

import pytest

from turnstile.common.command_line import EXIT_FAILED, CommandFailed
from turnstile.executor.cli import connection
from turnstile.executor.cli.refs import complete_ref


def test_a_completion_finds_token_and_authority_as_a_command_does(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_with: dict[str, str | None] = {}

    def connect(**settings: str | None) -> connection.Api:
        asked_with.update(settings)
        raise CommandFailed("that is enough", exit_code=EXIT_FAILED)

    monkeypatch.setattr(connection, "connect", connect)
    for name in connection.ApiSettings.model_fields:
        monkeypatch.setenv(f"TURNSTILE_{name.upper()}", f"the {name}")
    assert complete_ref("a") == []
    assert asked_with == {name: f"the {name}" for name in connection.ApiSettings.model_fields}
