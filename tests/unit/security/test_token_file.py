"""Tokens: their names and roles, invalid entries, and changes of the token file."""

import logging
import os
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from turnstile.executor import api_tokens
from turnstile.executor.api_tokens import ApiTokens, Role, read_entries
from turnstile.executor.settings import ExecutorSettings


def replace(file: Path, text: str) -> None:
    """Change a file as a mounted secret changes: replace it."""
    fresh = file.with_suffix(".fresh")
    fresh.write_text(text)
    fresh.replace(file)


@pytest.fixture
def without_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_tokens, "_REREAD_SECONDS", 0.0)


def test_a_bare_token_may_do_everything_and_an_entry_of_three_parts_has_a_name_and_a_role() -> None:
    known = ApiTokens(read_entries("plain, ci:submit:one\n# remark, with a comma\nboard:read:t:w:o"))
    for token, name, role in (
        ("plain", "token-1", Role.OPERATE),
        ("one", "ci", Role.SUBMIT),
        ("t:w:o", "board", Role.READ),
    ):
        found = known.find(token)
        assert found is not None
        assert (found.name, found.role) == (name, role)
    for token in ("", "two", "ci:submit:one", "ONE", "\xe4"):
        assert known.find(token) is None


@pytest.mark.parametrize(
    "text", ["ci:sumbit:s3cret", "ci:s3cret", ":read:s3cret", "ci:read:", "ok,s3cret s3cret", "s3cret\xe4"]
)
def test_an_invalid_token_entry_is_refused_by_number_and_never_shown(text: str) -> None:
    with pytest.raises(ValidationError) as refused:
        ExecutorSettings(api_tokens=SecretStr(text))
    (problem,) = refused.value.errors(include_input=False)
    assert "entry " in problem["msg"]
    assert "s3cret" not in problem["msg"]


def test_one_token_cannot_have_two_roles() -> None:
    with pytest.raises(ValueError, match="entry 2: an earlier entry has the same token"):
        read_entries("a:read:same,b:operate:same")


@pytest.mark.parametrize(
    ("text", "message"), [("# comment\n", "no token in it"), ("a:b:c", "entry 1: expected")]
)
def test_a_token_file_without_tokens_is_refused_at_the_start(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    with pytest.raises(ValidationError, match=message):
        ExecutorSettings(api_tokens_file=file)
    with pytest.raises(ValidationError, match="No such file"):
        ExecutorSettings(api_tokens_file=tmp_path / "none")


@pytest.mark.usefixtures("without_cache")
def test_a_change_of_the_token_file_adds_and_revokes_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("ci:submit:old\n")
    known = ExecutorSettings(api_tokens_file=file).accepted_tokens()
    assert known.find("old") is not None
    # As old and as long as the one before: only the file itself is another.
    before = file.stat()
    replace(file, "ci:submit:new\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert known.find("old") is None
    assert known.find("new") is not None


@pytest.mark.usefixtures("without_cache")
def test_an_invalid_change_of_the_token_file_is_ignored_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens"
    file.write_text("ci:submit:s3cret\n")
    known = ApiTokens([], file)
    for invalid in ("", "ci:sumbit:s3cret", None):
        caplog.clear()
        file.unlink() if invalid is None else replace(file, invalid)
        with caplog.at_level(logging.INFO, logger="executor"):
            assert all(known.find("s3cret") for _ in range(3))
        assert known.required
        assert [record.message for record in caplog.records] == ["api_tokens_kept"]
        assert "s3cret" not in str(vars(caplog.records[0]))


@pytest.mark.usefixtures("without_cache")
def test_a_token_file_that_is_put_back_as_it_was_ends_the_failure_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, saved = tmp_path / "tokens", tmp_path / "saved"
    file.write_text("ci:submit:s3cret\n")
    saved.hardlink_to(file)
    known = ApiTokens([], file)
    caplog.set_level(logging.INFO, logger="turnstile.executor")
    for damage in ("", "ci:sumbit:s3cret"):
        replace(file, damage)
        assert all(known.find("s3cret") for _ in range(3))
    # The same file, of the same time and size.
    saved.replace(file)
    assert known.find("s3cret") is not None
    shown = [(record.getMessage(), record.__dict__["count"]) for record in caplog.records]
    assert shown == [
        ("api_tokens_kept", 1),
        ("api_tokens_kept", 1),
        ("api_tokens_kept_over", 2),
        ("api_tokens_kept_over", 2),
    ]
