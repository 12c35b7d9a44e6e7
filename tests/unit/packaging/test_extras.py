"""The extras: each part imports what its extra installs, and an extra installs what its part imports."""

import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from turnstile.cli import app as umbrella
from turnstile.executor.cli import app as executor

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
GRAPH = grimp.build_graph("turnstile", include_external_packages=True, exclude_type_checking_imports=True)
DISTRIBUTIONS = {"opentelemetry": ["opentelemetry-api"], "pydantic_core": ["pydantic"]}
"""Of modules that several distributions have, or that another one requires in exactly one version."""
OF_THE_APPLICATION = {"opentelemetry-api", "sqlalchemy"}
"""The client uses them where the application has imported them."""
NOT_CALLED = {"jsonschema-rs"}
"""It compiles schemas: behind a function that the client does not call."""
PARTS = {
    "worker": ["turnstile.worker", "turnstile.healthcheck"],
    "executor": ["turnstile.executor", "turnstile.migrations"],
    "dev": ["turnstile.dev", "turnstile.testing.private_installation"],
    "stress": ["turnstile.stress"],
}


def commands(extra: str) -> list[str]:
    """Return the modules of the commands that need this extra."""
    groups = (executor.info.cls, umbrella.info.cls)
    found = [lazy for group in groups for lazy in group.lazy_commands.values() if lazy.extra == extra]  # type: ignore[union-attr]
    assert found
    return [lazy.target.partition(":")[0] for lazy in found]


def named(*extras: str) -> set[str]:
    """Return the packages of the base installation and of these extras."""
    texts = list(PROJECT["dependencies"])
    for extra in extras:
        texts += PROJECT["optional-dependencies"][extra]
    found = [Requirement(text) for text in texts]
    inner = [each for one in found if one.name == PROJECT["name"] for each in one.extras]
    names = {canonicalize_name(one.name) for one in found if one.name != PROJECT["name"]}
    return names | (named(*inner) if inner else set())


def imported(modules: Iterable[str]) -> set[str]:
    """Return the packages that these modules import, directly or through other modules of ours."""
    reached: set[str] = set()
    for module in modules:
        reached |= GRAPH.find_upstream_modules(module, as_package=True)
    outside = {name for name in reached if not name.startswith("turnstile.") and name != "turnstile"}
    outside -= sys.stdlib_module_names
    distributions = {**packages_distributions(), **DISTRIBUTIONS}
    return {canonicalize_name(distributions[name][0]) for name in outside}


def test_the_base_installation_is_what_the_client_and_declared_actions_import() -> None:
    assert (
        imported(["turnstile.client", "turnstile.worker.actions"])
        == named() | OF_THE_APPLICATION | NOT_CALLED
    )


def test_the_extra_cli_installs_what_the_commands_of_the_http_api_import() -> None:
    modules = [*commands("cli"), "turnstile.executor.cli.lazy_commands"]
    assert imported(modules) <= named("cli")
    assert named("cli") - named() <= imported(modules)


@pytest.mark.parametrize("extra", PARTS)
def test_an_extra_installs_what_its_part_imports(extra: str) -> None:
    assert imported(PARTS[extra]) <= named(extra) | OF_THE_APPLICATION
    own = {Requirement(text).name.lower() for text in PROJECT["optional-dependencies"][extra]}
    assert own - {PROJECT["name"]} <= imported(PARTS[extra])


def test_all_holds_every_extra() -> None:
    assert named("all") == named(*PROJECT["optional-dependencies"])
