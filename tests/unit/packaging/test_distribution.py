"""The wheel: every package with its data files and types, and no tests, benchmarks or examples."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "turnstile"
PACKAGES = sorted(path.name for path in SOURCE.iterdir() if path.is_symlink())


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Build the wheel and return the names of its files."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = target.glob("turnstile-*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.parametrize("package", PACKAGES)
def test_the_wheel_contains_every_file_of_a_package(package: str, wheel_names: set[str]) -> None:
    tree = (path for path in (ROOT / package).rglob("*") if path.is_file() and path.suffix != ".pyc")
    files = {f"turnstile/{path.relative_to(ROOT).as_posix()}" for path in tree}
    assert files
    assert files <= wheel_names


def test_the_wheel_contains_no_tests_benchmarks_or_examples(wheel_names: set[str]) -> None:
    (metadata,) = {name.split("/")[0] for name in wheel_names} - {"turnstile"}
    assert metadata.endswith(".dist-info")
    entries = {name.split("/")[1] for name in wheel_names if name.startswith("turnstile/")}
    assert entries == {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"}
    assert not entries & {"tests", "benchmarks", "examples"}
