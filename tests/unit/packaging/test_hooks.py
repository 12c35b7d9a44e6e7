"""The pre-commit hooks run, accept clean code, and reject or rewrite other code."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
HOOKS: list[dict[str, Any]] = [
    hook
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]
]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_pre_commit_hook_accepts_clean_code_and_rejects_or_rewrites_other(
    hook: dict[str, Any], tmp_path: Path
) -> None:
    program, *arguments = shlex.split(hook["entry"])
    installed = Path(sys.executable).parent / Path(program).name
    assert (program, hook["language"]) == (f".venv/bin/{installed.name}", "system")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for content, is_clean in (('"""A module."""\n', True), ("import os, sys\nx = '1'\n", False)):
        file = tmp_path / "module.py"
        file.write_text(content)
        done = subprocess.run(
            [installed, *arguments, file], cwd=tmp_path, capture_output=True, timeout=60, check=False
        )
        assert (done.returncode == 0 and file.read_text() == content) == is_clean
