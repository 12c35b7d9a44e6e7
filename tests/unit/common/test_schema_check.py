"""What the version of a schema means for a service."""

import pytest

from turnstile.migrations import schema_check
from turnstile.migrations.schema_check import SchemaVersion


@pytest.fixture(autouse=True)
def revisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_check, "_revisions", lambda: ("0002", frozenset({"0001", "0002"})))


def test_an_older_schema_is_named_with_both_versions_and_the_command() -> None:
    trouble = SchemaVersion("0001").trouble or ""
    assert "older (0001) than this version needs (0002)" in trouble
    assert "executor migrate" in trouble
    assert SchemaVersion("0001").notice is None


def test_a_newer_schema_is_used_and_reported_and_the_own_one_is_not() -> None:
    assert SchemaVersion("0003").trouble is None
    assert "newer (0003)" in (SchemaVersion("0003").notice or "")
    assert (SchemaVersion("0002").trouble, SchemaVersion("0002").notice) == (None, None)


def test_a_database_without_a_schema_is_named_with_the_command() -> None:
    assert "executor migrate" in (SchemaVersion(None).trouble or "")
