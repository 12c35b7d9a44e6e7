"""Settings come from the environment; an invalid one is reported in one line with its variable."""

import os
from pathlib import Path

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


@pytest.mark.parametrize("name", ["TURNSTILE_API_TOKEN_FILE", "TURNSTILE_API_CA_FILE"])
def test_a_worker_that_is_to_ask_an_executor_does_not_start_without_its_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv(name, "/no/file")
    read_settings(WorkerSettings)
    monkeypatch.setenv("TURNSTILE_API_URL", "https://there")
    with pytest.raises(SystemExit):
        read_settings(WorkerSettings)
    assert capsys.readouterr().err == f"{name}: /no/file: No such file or directory\n"


def test_the_token_of_a_worker_comes_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-a-file\n")
    monkeypatch.setenv("TURNSTILE_API_TOKEN_FILE", str(file))
    assert read_settings(WorkerSettings).bearer_token() == "from-a-file"
    monkeypatch.setenv("TURNSTILE_API_TOKEN", "from-the-environment")
    assert read_settings(WorkerSettings).bearer_token() == "from-the-environment"
