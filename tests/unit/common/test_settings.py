"""Settings come from the environment; an invalid one is reported in one line with its variable."""

import os

import pytest

from turnstile.common.settings import CommonSettings, read_settings


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TURNSTILE_")]:
        monkeypatch.delenv(name)


def test_an_option_overrides_the_environment_and_that_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_LEASE_DURATION", "1m30s")
    assert read_settings(CommonSettings, lease_duration=30).lease_duration == 30.0
    assert read_settings(CommonSettings, lease_duration=None).lease_duration == 90.0
    monkeypatch.setenv("TURNSTILE_LEASE_DURATION", "")
    assert read_settings(CommonSettings).lease_duration == 15.0


def test_a_password_is_not_in_the_representation() -> None:
    settings = read_settings(CommonSettings, database_url="postgresql://me:secret@there/db")
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TURNSTILE_DATABASE_URL", "nowhere"),
        ("TURNSTILE_AMQP_URL", "http://there/"),
        ("TURNSTILE_QUEUE_TYPE", "mirrored"),
        ("TURNSTILE_LEASE_DURATION", "soon"),
        ("TURNSTILE_LEASE_DURATION", "0"),
        ("TURNSTILE_HEARTBEAT_INTERVAL", "-1s"),
        ("TURNSTILE_HEARTBEAT_INTERVAL", "14s"),
        ("TURNSTILE_PARAMETERS_BYTES_MAX", "12"),
        ("TURNSTILE_RESULT_BYTES_MAX", "many"),
        ("TURNSTILE_LOG_FORMAT", "xml"),
        ("TURNSTILE_LOG_LEVEL", "LOUD"),
    ],
)
def test_an_invalid_value_ends_with_code_2_and_one_line_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        read_settings(CommonSettings)
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert name in lines[0]
