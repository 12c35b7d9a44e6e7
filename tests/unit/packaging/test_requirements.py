"""The requirement files: every package is pinned and hashed, and no index is named."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def entries(path: Path) -> list[str]:
    """Return one string per requirement, with continued lines joined and without comments."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    return [entry for entry in "\n".join(lines).replace("\\\n", " ").splitlines() if entry.strip()]


def pins(path: Path) -> dict[str, set[str]]:
    """Return the pinned versions by name; several where they differ by platform."""
    found: dict[str, set[str]] = {}
    for entry in entries(path):
        requirement = Requirement(entry.split("--hash")[0])
        found.setdefault(canonicalize_name(requirement.name), set()).add(str(requirement.specifier))
    return found


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_every_requirement_is_one_exact_version_with_a_sha256(path: Path) -> None:
    shape = re.compile(r"[a-z0-9-]+==\S+ (; .+ )?( *--hash=sha256:[0-9a-f]{64})+")
    assert [entry for entry in entries(path) if not shape.fullmatch(entry)] == []


@pytest.mark.parametrize("environment", ["dev", "peers"])
def test_an_environment_has_the_pins_of_the_project_and_of_its_build(environment: str) -> None:
    runtime, build, all_ = (
        pins(ROOT / "requirements" / f"{name}.txt") for name in ("runtime", "build", environment)
    )
    assert {name: all_.get(name) for name in runtime | build} == runtime | build


def test_every_declared_dependency_is_pinned_within_its_bounds() -> None:
    pinned = pins(ROOT / "requirements" / "dev.txt")
    for requirement in declared():
        versions = pinned[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version.removeprefix("==")) for version in versions), (
            requirement
        )


def test_the_documentation_gives_a_reason_for_every_declared_dependency() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text()
    explained = {canonicalize_name(name) for name in re.findall(r"^\| `([\w.-]+)", page, re.MULTILINE)}
    assert explained == {canonicalize_name(requirement.name) for requirement in declared()}


def declared() -> list[Requirement]:
    """Return the requirements of the services, the stress harness and the developers."""
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    extras = [text for extra in project["optional-dependencies"].values() for text in extra]
    texts = [*project["dependencies"], *extras, *groups["build"], *groups["dev"]]
    found = [Requirement(text) for text in texts if isinstance(text, str)]
    # An extra names those that it holds.
    return [requirement for requirement in found if requirement.name != project["name"]]
