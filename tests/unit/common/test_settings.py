"""Settings come from the environment; an invalid one is reported in one line with its variable."""

import os

import pytest

from turnstile.common.settings import CommonSettings, DatabaseSettings, read_settings
from turnstile.executor.settings import ExecutorSettings
from turnstile.worker.settings import WorkerSettings


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TURNSTILE_")]:
        monkeypatch.delenv(name)


def test_an_option_overrides_the_environment_and_that_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_LEASE_DURATION", "1m30s")
    assert read_settings(WorkerSettings, lease_duration=30).lease_duration == 30.0
    assert read_settings(WorkerSettings, lease_duration=None).lease_duration == 90.0
    monkeypatch.setenv("TURNSTILE_LEASE_DURATION", "")
    assert read_settings(WorkerSettings).lease_duration == 30.0


def test_a_password_is_not_in_the_representation() -> None:
    settings = read_settings(DatabaseSettings, database_url="postgresql://me:secret@there/db")
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (DatabaseSettings, "TURNSTILE_DATABASE_URL", "nowhere"),
        (CommonSettings, "TURNSTILE_AMQP_URL", "http://there/"),
        (ExecutorSettings, "TURNSTILE_QUEUE_TYPE", "mirrored"),
        (WorkerSettings, "TURNSTILE_LEASE_DURATION", "soon"),
        (WorkerSettings, "TURNSTILE_LEASE_DURATION", "0"),
        (WorkerSettings, "TURNSTILE_HEARTBEAT_INTERVAL", "-1s"),
        (WorkerSettings, "TURNSTILE_HEARTBEAT_INTERVAL", "16s"),
        (ExecutorSettings, "TURNSTILE_PARAMETERS_BYTES_MAX", "12"),
        (WorkerSettings, "TURNSTILE_RESULT_BYTES_MAX", "many"),
        (CommonSettings, "TURNSTILE_LOG_FORMAT", "xml"),
        (CommonSettings, "TURNSTILE_LOG_LEVEL", "LOUD"),
    ],
)
def test_an_invalid_value_ends_with_code_2_and_one_line_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: type[CommonSettings],
    name: str,
    value: str,
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        read_settings(kind)
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert name in lines[0]
