"""compose.yaml: valid by the Compose specification, and every command and setting in it is one of ours."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from tests.unit.packaging.command_lines import help_of
from turnstile.common.domain.durations import parse_duration

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "compose.yaml").read_text()


class Limits(BaseModel):
    """What a container may take at most."""

    cpus: float
    memory: str


class Resources(BaseModel):
    """What bounds a container."""

    limits: Limits


class Deploy(BaseModel):
    """How often a service runs, and within which bounds."""

    replicas: int = 1
    resources: Resources


class Service(BaseModel):
    """What these rules look at in one service."""

    command: list[str] = []
    environment: dict[str, str] = {}
    depends_on: dict[str, dict[str, str]] = {}
    ports: list[str] = []
    volumes: list[str] = []
    healthcheck: dict[str, object] = {}
    stop_grace_period: str = "10s"
    deploy: Deploy


class Compose(BaseModel):
    """What these rules look at in the file."""

    services: dict[str, Service]


SERVICES = Compose.model_validate(yaml.safe_load(TEXT)).services
OURS = [name for name, service in SERVICES.items() if service.command]

every_service_of_ours = pytest.mark.parametrize("name", OURS)


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


def test_two_of_each_service_the_migration_and_the_accounts_are_there() -> None:
    assert {name: (SERVICES[name].command[:2], SERVICES[name].deploy.replicas) for name in OURS} == {
        "migrate": (["executor", "migrate"], 1),
        "permissions": (["executor", "setup-permissions"], 1),
        "executor": (["executor", "serve"], 2),
        "worker": (["worker", "serve"], 2),
    }


@every_service_of_ours
def test_every_command_is_one_that_our_command_line_accepts(name: str) -> None:
    exit_code, output = help_of(SERVICES[name].command)
    assert exit_code == 0, output


@every_service_of_ours
def test_every_setting_is_one_that_the_service_knows(name: str) -> None:
    _, output = help_of(SERVICES[name].command)
    assert [setting for setting in SERVICES[name].environment if setting not in output] == []


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_a_bound_and_says_how_it_is_unless_it_ends(name: str) -> None:
    service = SERVICES[name]
    assert service.deploy.resources.limits.cpus > 0
    assert re.fullmatch(r"\d+[MG]", service.deploy.resources.limits.memory)
    ends = name in ("migrate", "permissions")
    in_the_image = name in ("executor", "worker")
    assert service.healthcheck == {"disable": True} if ends else in_the_image or "test" in service.healthcheck


@pytest.mark.parametrize("name", ["executor", "worker"])
def test_a_service_is_killed_only_after_its_drain_could_end(name: str) -> None:
    _, output = help_of(SERVICES[name].command)
    drain = re.search(r"TURNSTILE_DRAIN_TIMEOUT", output)
    default = re.search(r"--drain-timeout\b.*?\[default: (\w+)\]", output, re.DOTALL)
    assert drain
    assert default
    rounds = 2 if name == "executor" else 1
    grace_seconds = parse_duration(SERVICES[name].stop_grace_period)
    assert grace_seconds > rounds * parse_duration(default[1]) + 5


def test_each_service_has_an_account_of_its_own_and_only_those_that_end_are_owners() -> None:
    for name, account in (
        ("migrate", "turnstile"),
        ("permissions", "turnstile"),
        ("executor", "turnstile-executor"),
        ("worker", "turnstile-worker"),
    ):
        urls = [v for k, v in SERVICES[name].environment.items() if k.endswith("_URL")]
        assert {re.match(r"\w+://([\w-]+):\$\{\w+PASSWORD:", url)[1] for url in urls} == {account}  # type: ignore[index]


def test_there_is_a_port_of_this_machine_for_each_executor() -> None:
    given = dict(re.findall(r"^(\w+)=(.+)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    first, _, last = given["EXECUTOR_PORTS"].partition("-")
    assert int(last) - int(first) + 1 == SERVICES["executor"].deploy.replicas
    assert given["TURNSTILE_API_URL"].endswith(f":{first}")
    assert f":{given['TURNSTILE_API_TOKEN']}" in given["TURNSTILE_API_TOKENS"]
    (published,) = SERVICES["executor"].ports
    assert published == f"127.0.0.1:${{EXECUTOR_PORTS:-{given['EXECUTOR_PORTS']}}}:8000"


def test_the_actions_that_the_worker_serves_exist_in_the_mounted_folder() -> None:
    worker = SERVICES["worker"]
    module = worker.command[worker.command.index("--actions") + 1].split(":")[0].replace(".", "/")
    assert worker.volumes == [f"./{module.split('/')[0]}:/srv/turnstile/{module.split('/')[0]}:ro"]
    assert (ROOT / f"{module}.py").is_file() or (ROOT / module / "__init__.py").is_file()


def test_services_start_after_healthy_servers_and_a_finished_migration() -> None:
    for name in ("executor", "worker"):
        conditions = {other: rule["condition"] for other, rule in SERVICES[name].depends_on.items()}
        assert conditions == {
            "postgres": "service_healthy",
            "rabbitmq": "service_healthy",
            "permissions": "service_completed_successfully",
        }
    before = {other: rule["condition"] for other, rule in SERVICES["permissions"].depends_on.items()}
    assert before["migrate"] == "service_completed_successfully"


def test_every_published_port_is_bound_to_loopback() -> None:
    ports = [port for service in SERVICES.values() for port in service.ports]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_the_executor_listens_beyond_loopback_only_with_a_token() -> None:
    environment = SERVICES["executor"].environment
    assert environment["TURNSTILE_HTTP_HOST"] == "0.0.0.0"
    assert environment["TURNSTILE_API_TOKENS"].startswith("${TURNSTILE_API_TOKENS:?")


def test_no_secret_stands_in_the_file_or_has_a_default() -> None:
    secrets = re.findall(r"\$\{(\w*(?:PASSWORD|TOKENS))(:.)", TEXT)
    assert {name for name, _ in secrets} == {
        "POSTGRES_PASSWORD", "RABBITMQ_PASSWORD", "TURNSTILE_API_TOKENS",
        "EXECUTOR_PASSWORD", "WORKER_PASSWORD", "CLIENT_PASSWORD",
    }  # fmt: skip
    assert {operator for _, operator in secrets} == {":?"}


def test_the_example_environment_gives_every_name_that_the_file_asks_for_and_no_other() -> None:
    given = dict(re.findall(r"^(\w+)=(.+)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    asked = set(re.findall(r"\$\{(\w+)", TEXT))
    by_hand = {"TURNSTILE_API_URL", "TURNSTILE_API_TOKEN"}
    known = asked | by_hand | {name for service in SERVICES.values() for name in service.environment}
    assert asked <= given.keys() <= known


def test_the_example_environment_uses_one_password_per_server() -> None:
    given = dict(re.findall(r"^(\w+)=(.+)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert f":{given['POSTGRES_PASSWORD']}@" in given["TURNSTILE_DATABASE_URL"]
    assert f":{given['RABBITMQ_PASSWORD']}@" in given["TURNSTILE_AMQP_URL"]
