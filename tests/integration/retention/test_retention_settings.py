"""What is kept, as people write it."""

import pytest
from pydantic import ValidationError

from turnstile.common.settings import read_settings
from turnstile.executor.settings import ExecutorSettings


def test_an_age_is_a_duration_or_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_RETENTION_AGE", "90d")
    assert ExecutorSettings().retention_age == 90 * 86_400
    monkeypatch.setenv("TURNSTILE_RETENTION_AGE", " Forever ")
    assert ExecutorSettings().retention_age is None
    monkeypatch.setenv("TURNSTILE_RETENTION_AGE", "never")
    with pytest.raises(ValidationError, match="not a duration"):
        ExecutorSettings()


def test_a_weak_secret_is_refused_by_name_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNSTILE_WEBHOOK_SECRET", "sesame")
    with pytest.raises(SystemExit):
        read_settings(ExecutorSettings)
    said = capsys.readouterr().err
    assert said.startswith("TURNSTILE_WEBHOOK_SECRET: a secret of 6 bytes")
    assert "openssl rand -base64 32" in said
    assert "sesame" not in said
