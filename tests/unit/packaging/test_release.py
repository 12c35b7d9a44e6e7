"""A release: one version everywhere, with its notes and its commit."""

import re
import tomllib
from pathlib import Path

import pytest

from turnstile.common import version

ROOT = Path(__file__).parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_change_log_has_a_dated_section_of_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## (\S+)(?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)
    newest = next(each for each in sections if each[0] != "Unreleased")
    assert newest[0] == VERSION
    assert newest[1]


def test_compose_names_the_image_of_the_version() -> None:
    assert re.findall(r"image: turnstile:(\S+)", (ROOT / "compose.yaml").read_text()) == [VERSION]


def test_a_version_names_the_commit_of_its_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = version.installed_version()
    (tmp_path / "commit").write_text("0123456789ab\n")
    monkeypatch.setattr(version, "_COMMIT", tmp_path / "commit")
    assert version.installed_version() == f"{number}+0123456789ab"
