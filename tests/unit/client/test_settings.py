"""The settings of a client from the environment."""

from pathlib import Path
from typing import get_type_hints

import pytest

from turnstile.client import AsyncClient, Client, InvalidSetting, settings
from turnstile.client.fields import ActionFields, ResourceFields
from turnstile.client.settings import client_settings
from turnstile.common.action_definition import ActionDefinition
from turnstile.executor.definitions import ResourceDefinition

_API = {"TURNSTILE_API_URL": "https://turnstile.example.org"}


def test_everything_that_a_client_needs_is_read(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-token\n")
    environment = {
        "TURNSTILE_AMQP_URL": "amqp://user:password@broker/vhost",
        "TURNSTILE_API_URL": "http://127.0.0.1:8000",
        "TURNSTILE_API_TOKEN_FILE": str(token),
        "TURNSTILE_API_CA_FILE": "",
        "TURNSTILE_PARAMETERS_BYTES_MAX": "1000",
        "TURNSTILE_ANSWER_TIMEOUT": "3s",
    }
    assert client_settings(environment) == {
        "amqp_url": "amqp://user:password@broker/vhost",
        "http_url": "http://127.0.0.1:8000",
        "token": "secret-token",
        "ca_file": None,
        "parameters_bytes_max": 1000,
        "answer_timeout": "3s",
    }


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "TURNSTILE_API_URL: not set, and neither is TURNSTILE_AMQP_URL; set"),
        (
            {"TURNSTILE_API_URL": "localhost:8000"},
            "TURNSTILE_API_URL: invalid URL; expected one like http://",
        ),
        ({"TURNSTILE_AMQP_URL": "http://broker"}, "TURNSTILE_AMQP_URL: expected amqp://user:password@host"),
        (_API | {"TURNSTILE_API_TOKEN": "a b"}, "TURNSTILE_API_TOKEN: not a token; expected printable ASCII"),
        (_API | {"TURNSTILE_API_TOKEN_FILE": "/no/file"}, "TURNSTILE_API_TOKEN_FILE: /no/file: No such file"),
        (_API | {"TURNSTILE_API_CA_FILE": "/no/file"}, "TURNSTILE_API_CA_FILE: /no/file: No such file"),
        (_API | {"TURNSTILE_ANSWER_TIMEOUT": "soon"}, "TURNSTILE_ANSWER_TIMEOUT: "),
        (
            _API | {"TURNSTILE_PARAMETERS_BYTES_MAX": "1k"},
            "TURNSTILE_PARAMETERS_BYTES_MAX: expected a number",
        ),
    ],
)
def test_a_wrong_setting_is_named_with_its_remedy(
    environment: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if not environment:
        monkeypatch.delenv("TURNSTILE_AMQP_URL", raising=False)
        monkeypatch.delenv("TURNSTILE_API_URL", raising=False)
    for kind in (AsyncClient, Client):
        with pytest.raises(InvalidSetting) as wrong:
            kind.from_env()
        assert words in str(wrong.value)


def test_a_client_logs_each_unknown_variable_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "_WARNED", set())
    environment = {"TURNSTILE_API_URL": "http://h", "TURNSTILE_API_TOKN": "hidden"}
    for _ in range(3):
        client_settings(environment)
    assert [(each.getMessage(), each.__dict__["variable"]) for each in caplog.records] == [
        ("unknown_setting", "TURNSTILE_API_TOKN")
    ]
    assert caplog.records[0].__dict__["did_you_mean"] == "TURNSTILE_API_TOKEN"


def test_the_fields_that_a_client_changes_are_those_of_the_definitions() -> None:
    assert get_type_hints(ActionFields).keys() == ActionDefinition.model_fields.keys() - {"ref"}
    assert get_type_hints(ResourceFields).keys() == ResourceDefinition.model_fields.keys() - {"name"}
