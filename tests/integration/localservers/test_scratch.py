"""Scratch folders: one per owner, deleted with it."""

import tempfile
from pathlib import Path

import pytest

from turnstile.localservers import servers
from turnstile.localservers.servers import ScratchFolder


@pytest.fixture(autouse=True)
def scratch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_without_a_living_owner_is_deleted(scratch_folder: Path) -> None:
    abandoned = scratch_folder / "turnstile-abandoned"
    abandoned.mkdir()
    (abandoned / "owner.lock").touch()
    scratch = ScratchFolder.create()
    assert not abandoned.exists()
    scratch.delete()


def test_a_folder_without_a_lock_file_is_not_deleted(scratch_folder: Path) -> None:
    foreign = scratch_folder / "turnstile-notes"
    foreign.mkdir()
    ScratchFolder.create().delete()
    assert foreign.is_dir()


def test_an_owned_folder_is_deleted_by_its_owner_only(scratch_folder: Path) -> None:
    first, second = ScratchFolder.create(), ScratchFolder.create()
    (first.path / "file").write_text("data", encoding="utf-8")
    first.delete()
    assert list(scratch_folder.iterdir()) == [second.path]
    second.delete()


@pytest.mark.parametrize(("free_bytes_min", "is_in_memory"), [(0, True), (2**63, False)])
def test_a_folder_is_in_memory_only_where_that_has_room(
    scratch_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    free_bytes_min: int,
    is_in_memory: bool,
) -> None:
    memory = tmp_path_factory.mktemp("memory")
    monkeypatch.setattr(servers, "_MEMORY", memory)
    monkeypatch.setattr(servers, "_MEMORY_FREE_BYTES_MIN", free_bytes_min)
    abandoned = memory / "turnstile-abandoned"
    abandoned.mkdir()
    (abandoned / "owner.lock").touch()
    scratch = ScratchFolder.create(in_memory=True)
    assert not abandoned.exists()
    assert scratch.path.parent == (memory if is_in_memory else scratch_folder)
    scratch.delete()
