"""Scratch folders: one per owner, and none without."""

import tempfile
from pathlib import Path

import pytest

from turnstile.localservers.scratch import ScratchFolder


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_gone_when_deleted(temporary_folder: Path) -> None:
    scratch = ScratchFolder.create()
    (scratch.path / "file").write_text("data", encoding="utf-8")
    scratch.delete()
    assert list(temporary_folder.iterdir()) == []


def test_a_newcomer_leaves_a_folder_that_is_owned() -> None:
    first, second = ScratchFolder.create(), ScratchFolder.create()
    assert first.path.is_dir()
    first.delete()
    second.delete()


def test_a_newcomer_deletes_a_folder_whose_owner_is_gone(temporary_folder: Path) -> None:
    abandoned = temporary_folder / "turnstile-abandoned"
    abandoned.mkdir()
    (abandoned / "owner.lock").touch()
    scratch = ScratchFolder.create()
    assert not abandoned.exists()
    scratch.delete()


def test_a_folder_without_a_lock_is_not_ours_to_delete(temporary_folder: Path) -> None:
    foreign = temporary_folder / "turnstile-notes"
    foreign.mkdir()
    ScratchFolder.create().delete()
    assert foreign.is_dir()
