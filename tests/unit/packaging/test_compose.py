"""compose.yaml: valid by the Compose specification, and its settings exist. `test_compose_runs` runs it."""

import re
from pathlib import Path

import check_jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from click.testing import CliRunner
from pydantic import BaseModel

from turnstile.common.domain.durations import parse_duration
from turnstile.common.known_settings import unknown_settings
from turnstile.env import env
from turnstile.executor.settings import ExecutorSettings
from turnstile.worker.settings import WorkerSettings

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "compose.yaml").read_text()


class Service(BaseModel):
    """One service."""

    command: list[str] = []
    environment: dict[str, str] = {}
    ports: list[str] = []
    volumes: list[str] = []
    stop_grace_period: str = "10s"


class Config(BaseModel):
    """A file that a service gets."""

    content: str


class Compose(BaseModel):
    """The file."""

    services: dict[str, Service]
    configs: dict[str, Config]


COMPOSE = Compose.model_validate(yaml.safe_load(TEXT))
SERVICES = COMPOSE.services


def new_environment(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return what `turnstile env` prints."""
    env()
    return dict(re.findall(r"^(\w+)=(.+)$", capsys.readouterr().out, re.MULTILINE))


def test_the_file_is_valid_by_the_compose_specification() -> None:
    options = ["--builtin-schema", "vendor.compose-spec", str(ROOT / "compose.yaml")]
    result = CliRunner().invoke(check_jsonschema.main, options)
    assert result.exit_code == 0, result.output


def test_every_setting_is_one_that_something_reads() -> None:
    for service in SERVICES.values():
        assert unknown_settings(service.environment) == []


def test_a_service_is_killed_only_after_its_drain_timeout() -> None:
    # The executor drains HTTP, then its listeners.
    for name, settings, rounds in (("executor", ExecutorSettings, 2), ("worker", WorkerSettings, 1)):
        grace_seconds = parse_duration(SERVICES[name].stop_grace_period)
        assert grace_seconds > rounds * settings.model_fields["drain_timeout"].default + 5


def test_each_service_has_its_own_account_and_only_the_jobs_are_owners() -> None:
    for name, account in (
        ("migrate", "turnstile"),
        ("permissions", "turnstile"),
        ("executor", "turnstile-executor"),
        ("worker", "turnstile-worker"),
    ):
        environment = SERVICES[name].environment
        urls = [v for k, v in environment.items() if k.endswith("_URL") and k != "TURNSTILE_API_URL"]
        assert {re.match(r"\w+://([\w-]+):\$\{\w+PASSWORD:", url)[1] for url in urls} == {account}  # type: ignore[index]


def test_a_worker_has_no_database_and_may_ask_the_executors_with_a_token_of_its_own() -> None:
    worker, executor = SERVICES["worker"].environment, SERVICES["executor"].environment
    assert {name for name in worker if name.endswith("_URL")} == {"TURNSTILE_AMQP_URL", "TURNSTILE_API_URL"}
    assert worker["TURNSTILE_API_URL"] == f"http://executor:{executor['TURNSTILE_HTTP_PORT']}"
    assert f"worker:read:{worker['TURNSTILE_API_TOKEN']}" in executor["TURNSTILE_API_TOKENS"].split(",")


def test_every_published_port_is_bound_to_loopback() -> None:
    ports = [port for service in SERVICES.values() for port in service.ports]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_the_printed_environment_sets_exactly_the_names_that_the_file_uses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = new_environment(capsys)
    used = set(re.findall(r"\$\{(\w+)", TEXT))
    by_hand = {"TURNSTILE_API_URL", "TURNSTILE_API_TOKEN"}
    known = used | by_hand | {name for service in SERVICES.values() for name in service.environment}
    assert used <= given.keys() <= known


def test_secrets_are_new_each_time_and_equal_where_they_are_the_same_secret(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = new_environment(capsys), new_environment(capsys)
    changed = {name for name in first if first[name] != second[name]}
    assert changed == {
        "POSTGRES_PASSWORD", "RABBITMQ_PASSWORD", "EXECUTOR_PASSWORD", "WORKER_PASSWORD", "CLIENT_PASSWORD",
        "TURNSTILE_API_TOKENS", "WORKER_API_TOKEN", "TURNSTILE_WEBHOOK_SECRET", "TURNSTILE_DATABASE_URL",
        "TURNSTILE_AMQP_URL", "TURNSTILE_API_TOKEN",
    }  # fmt: skip
    assert first["POSTGRES_PASSWORD"] in first["TURNSTILE_DATABASE_URL"]
    assert f"operator:operate:{first['TURNSTILE_API_TOKEN']}" in first["TURNSTILE_API_TOKENS"]


def test_the_file_needs_no_other_file() -> None:
    mounted = [volume for service in SERVICES.values() for volume in service.volumes]
    assert mounted
    assert [volume for volume in mounted if volume.startswith((".", "/"))] == []


def test_the_broker_is_configured_as_everywhere() -> None:
    lines = (ROOT / "deploy/rabbitmq/turnstile.conf").read_text().splitlines()
    settings = [line for line in lines if line and not line.startswith("#")]
    assert COMPOSE.configs["rabbitmq"].content.splitlines() == settings
