"""compose.yaml: valid by the Compose specification, and every command and setting in it is one of ours."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "compose.yaml").read_text()


class Service(BaseModel):
    """What these rules look at in one service."""

    command: list[str] = []
    environment: dict[str, str] = {}
    depends_on: dict[str, dict[str, str]] = {}
    ports: list[str] = []
    volumes: list[str] = []


class Compose(BaseModel):
    """What these rules look at in the file."""

    services: dict[str, Service]


SERVICES = Compose.model_validate(yaml.safe_load(TEXT)).services
OURS = [name for name, service in SERVICES.items() if service.command]

every_service_of_ours = pytest.mark.parametrize("name", OURS)


def help_of(command: list[str]) -> tuple[int, str]:
    """Let the real command line parse the command up to its end, where --help stops it before it acts."""
    program, *arguments = command
    app = import_module(f"{program}.cli").app
    result = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "400", "NO_COLOR": "1"})
    return result.exit_code, result.output


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


def test_the_two_services_and_the_migration_are_there() -> None:
    assert {name: SERVICES[name].command[:2] for name in OURS} == {
        "migrate": ["executor", "migrate"],
        "executor": ["executor", "serve"],
        "worker": ["worker", "serve"],
    }


@every_service_of_ours
def test_every_command_is_one_that_our_command_line_accepts(name: str) -> None:
    exit_code, output = help_of(SERVICES[name].command)
    assert exit_code == 0, output


@pytest.mark.parametrize("name", ["executor", "worker"])
def test_every_setting_is_one_that_the_service_knows(name: str) -> None:
    _, output = help_of(SERVICES[name].command)
    assert [setting for setting in SERVICES[name].environment if setting not in output] == []


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
            "migrate": "service_completed_successfully",
        }


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
    assert {name for name, _ in secrets} == {"POSTGRES_PASSWORD", "RABBITMQ_PASSWORD", "TURNSTILE_API_TOKENS"}
    assert {operator for _, operator in secrets} == {":?"}


def test_the_example_environment_gives_every_name_that_the_file_asks_for_and_no_other() -> None:
    given = dict(re.findall(r"^(\w+)=(.+)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    asked = set(re.findall(r"\$\{(\w+)", TEXT))
    known = asked | {name for service in SERVICES.values() for name in service.environment}
    assert asked <= given.keys() <= known


def test_the_example_environment_uses_one_password_per_server() -> None:
    given = dict(re.findall(r"^(\w+)=(.+)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert f":{given['POSTGRES_PASSWORD']}@" in given["TURNSTILE_DATABASE_URL"]
    assert f":{given['RABBITMQ_PASSWORD']}@" in given["TURNSTILE_AMQP_URL"]
