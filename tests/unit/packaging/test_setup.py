"""`make setup` on an incomplete machine: one line with the remedy, and a failing exit code."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ENSUREPIP_MISSING = """
case "$2" in
    *print*) echo 3.12 ;;
    *ensurepip*) exit 1 ;;
esac
"""
TOO_OLD = """
case "$2" in
    *print*) echo 3.9 ;;
    *version_info*) exit 1 ;;
esac
"""


def executable(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def setup(folder: Path, python: str, uid: int = 1000) -> subprocess.CompletedProcess[str]:
    """Run the script as the user `uid` where only `folder`, bash and dirname exist."""
    executable(folder, "id", f"echo {uid}")
    for tool in ("bash", "dirname"):
        (folder / tool).symlink_to(Path("/usr/bin") / tool)
    return subprocess.run(
        ["/bin/bash", str(ROOT / "scripts" / "setup"), python, str(folder / "venv")],
        env={"PATH": str(folder), "HOME": os.environ.get("HOME", "/")},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("interpreter", "packages"),
    [(None, "python3 python3-venv"), (ENSUREPIP_MISSING, "python3.12-venv")],
    ids=["no-python", "no-venv-module"],
)
def test_a_missing_part_is_named_with_the_command_that_installs_it(
    tmp_path: Path, interpreter: str | None, packages: str
) -> None:
    executable(tmp_path, "apt-get", "exit 99")
    if interpreter is not None:
        executable(tmp_path, "python3", interpreter)
    done = setup(tmp_path, "python3")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(f"install it with: apt-get install -y {packages}")


def test_an_old_python_is_rejected_with_the_required_version(tmp_path: Path) -> None:
    executable(tmp_path, "python3", TOO_OLD)
    done = setup(tmp_path, "python3")
    assert done.returncode == 1
    assert "needs Python 3.11 or newer, python3 is 3.9" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_the_script_installs_missing_packages_as_root(tmp_path: Path) -> None:
    executable(tmp_path, "apt-get", f'echo "$*" >> {tmp_path}/installed')
    done = setup(tmp_path, "python3", uid=0)
    (command,) = (tmp_path / "installed").read_text().splitlines()
    assert command == "install -y -qq --no-install-recommends python3 python3-venv"
    assert "python3 is missing" in done.stderr
