"""What the wheel carries: every package, its data files, its types; and the layers it was built from."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names inside a wheel that is built from the tree as it stands."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = target.glob("turnstile-*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_exists_and_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "__init__.py").is_file()
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.parametrize("package", PACKAGES)
def test_the_wheel_carries_every_file_of_a_package(package: str, wheel_names: set[str]) -> None:
    tree = (path for path in (ROOT / package).rglob("*") if path.is_file() and path.suffix != ".pyc")
    files = {path.relative_to(ROOT).as_posix() for path in tree}
    assert files
    assert files <= wheel_names


def test_the_wheel_carries_nothing_but_the_packages(wheel_names: set[str]) -> None:
    assert {name.split("/")[0] for name in wheel_names} == {*PACKAGES, "turnstile-0.1.0.dist-info"}


def test_the_wheel_carries_the_licence(wheel_names: set[str]) -> None:
    assert "turnstile-0.1.0.dist-info/licenses/LICENSE" in wheel_names
