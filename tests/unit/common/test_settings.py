"""Settings: from the environment, and a wrong one is one line that names its variable."""

import pytest

from turnstile.common.settings import CommonSettings, read_settings


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("TURNSTILE_")]:
        monkeypatch.delenv(name)


def test_without_any_environment_the_defaults_stand() -> None:
    settings = read_settings(CommonSettings)
    assert settings.lease_duration == 15.0
    assert settings.heartbeat_interval == 5.0


def test_durations_are_read_as_people_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_LEASE_DURATION", "1m30s")
    assert read_settings(CommonSettings).lease_duration == 90.0


def test_an_option_comes_before_the_environment_and_none_is_no_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TURNSTILE_LEASE_DURATION", "60")
    assert read_settings(CommonSettings, lease_duration=30).lease_duration == 30.0
    assert read_settings(CommonSettings, lease_duration=None).lease_duration == 60.0


def test_an_empty_variable_is_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_LEASE_DURATION", "")
    assert read_settings(CommonSettings).lease_duration == 15.0


def test_a_password_does_not_show() -> None:
    settings = read_settings(CommonSettings, database_url="postgresql://me:secret@there/db")
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TURNSTILE_DATABASE_URL", "nowhere"),
        ("TURNSTILE_DATABASE_URL", "mysql://root@there/db"),
        ("TURNSTILE_DATABASE_URL", "postgresql://there"),
        ("TURNSTILE_DATABASE_URL", "postgresql://here:5432,there:port/db"),
        ("TURNSTILE_AMQP_URL", "http://there/"),
        ("TURNSTILE_AMQP_URL", "amqp:///no-host"),
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
def test_a_wrong_value_ends_with_code_2_and_one_line_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        read_settings(CommonSettings)
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert name in said[0]
