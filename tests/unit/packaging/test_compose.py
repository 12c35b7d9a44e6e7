"""compose.yaml: valid by the Compose specification, and its commands and settings exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from tests.unit.packaging.manifests import assert_accepted, help_of
from turnstile.common.domain.durations import parse_duration

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "compose.yaml").read_text()


class Service(BaseModel):
    """One service."""

    command: list[str] = []
    environment: dict[str, str] = {}
    ports: list[str] = []
    volumes: list[str] = []
    stop_grace_period: str = "10s"


class Compose(BaseModel):
    """The file."""

    services: dict[str, Service]


SERVICES = Compose.model_validate(yaml.safe_load(TEXT)).services
OURS = [name for name, service in SERVICES.items() if service.command]


def test_the_file_is_valid_by_the_compose_specification() -> None:
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        "compose.yaml",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", OURS)
def test_every_command_is_accepted_with_its_settings(name: str) -> None:
    assert_accepted(SERVICES[name].command, SERVICES[name].environment)


@pytest.mark.parametrize("name", ["executor", "worker"])
def test_a_service_is_killed_only_after_its_drain_timeout(name: str) -> None:
    _, output = help_of(SERVICES[name].command)
    drain = re.search(r"TURNSTILE_DRAIN_TIMEOUT", output)
    default = re.search(r"--drain-timeout\b.*?\[default: (\w+)\]", output, re.DOTALL)
    assert drain
    assert default
    rounds = 2 if name == "executor" else 1
    grace_seconds = parse_duration(SERVICES[name].stop_grace_period)
    assert grace_seconds > rounds * parse_duration(default[1]) + 5


def test_each_service_has_its_own_account_and_only_the_jobs_are_owners() -> None:
    for name, account in (
        ("migrate", "turnstile"),
        ("permissions", "turnstile"),
        ("executor", "turnstile-executor"),
        ("worker", "turnstile-worker"),
    ):
        urls = [v for k, v in SERVICES[name].environment.items() if k.endswith("_URL")]
        assert {re.match(r"\w+://([\w-]+):\$\{\w+PASSWORD:", url)[1] for url in urls} == {account}  # type: ignore[index]


def test_every_published_port_is_bound_to_loopback() -> None:
    ports = [port for service in SERVICES.values() for port in service.ports]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_the_example_environment_sets_exactly_the_names_that_the_file_uses() -> None:
    given = dict(re.findall(r"^(\w+)=(.+)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    used = set(re.findall(r"\$\{(\w+)", TEXT))
    by_hand = {"TURNSTILE_API_URL", "TURNSTILE_API_TOKEN"}
    known = used | by_hand | {name for service in SERVICES.values() for name in service.environment}
    assert used <= given.keys() <= known
