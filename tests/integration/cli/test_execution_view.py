"""How an execution stands, in words (P10)."""

from turnstile.executor.cli.execution_view import took


def test_how_long_it_ran_is_said_once_it_has_ended() -> None:
    assert took("2026-11-21T07:30:00Z", "2026-11-21T07:31:30.250Z") == "1m30s250ms"
    assert took("2026-11-21T07:30:00Z", None) == ""
