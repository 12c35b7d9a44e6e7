"""A variable that no part of Turnstile reads is named with the nearest known one; no known one is."""

import pytest

from turnstile.client.settings import ANSWER_TIMEOUT
from turnstile.common import crash_points
from turnstile.common.api_token import CA_FILE, TOKEN, TOKEN_FILE
from turnstile.common.cli import environment_name
from turnstile.common.known_settings import KNOWN, unknown_settings
from turnstile.executor.cli.backup import BackupSettings
from turnstile.executor.cli.client import ApiSettings
from turnstile.executor.cli.setup_permissions import SetupSettings
from turnstile.executor.settings import ExecutorSettings
from turnstile.stress.trace import ACTIONS_VARIABLE, TRACE_VARIABLE
from turnstile.worker.runners.supervisor import TAG_VARIABLE
from turnstile.worker.settings import WorkerSettings


def test_the_settings_of_every_part_are_known() -> None:
    models = (ExecutorSettings, WorkerSettings, SetupSettings, BackupSettings, ApiSettings)
    settings = {environment_name(name) for model in models for name in model.model_fields}
    services = ("EXECUTOR", "WORKER", "CLIENT")
    passwords = {f"TURNSTILE_{each}_PASSWORD{end}" for each in services for end in ("", "_FILE")}
    others = {
        ANSWER_TIMEOUT,
        CA_FILE,
        TOKEN,
        TOKEN_FILE,
        crash_points.VARIABLE,
        ACTIONS_VARIABLE,
        TRACE_VARIABLE,
        TAG_VARIABLE,
    }
    of_commands = {f"TURNSTILE_{name}" for name in ("EXECUTION_ID", "ATTEMPT", "ACTION_REF")}
    of_tests = {f"TURNSTILE_TEST_{name}_URL" for name in ("DATABASE", "AMQP", "MANAGEMENT")}
    assert settings | passwords | others | of_commands | of_tests == KNOWN


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("TURNSTILE_RETENTON_AGE", "TURNSTILE_RETENTION_AGE"),
        ("TURNSTILE_WORKER_CONCURENCY", "TURNSTILE_WORKER_CONCURRENCY"),
        ("TURNSTILE_HTP_PORT", "TURNSTILE_HTTP_PORT"),
        ("turnstile_retenton_age", "TURNSTILE_RETENTION_AGE"),
        ("TURNSTILE_XYZZY_PLUGH_QUUX", None),
    ],
)
def test_an_unknown_variable_is_named_with_the_nearest_known_one(variable: str, meant: str | None) -> None:
    assert unknown_settings({variable: "8000", "PATH": "/bin"}) == [(variable, meant)]


def test_known_variables_of_any_case_are_not_unknown() -> None:
    assert unknown_settings(dict.fromkeys(KNOWN, "1") | {"turnstile_retention_age": "1d"}) == []


def test_variables_that_actions_inherit_and_links_of_kubernetes_are_not_unknown() -> None:
    environment = {
        "TURNSTILE_CHILD_ENVIRONMENT": "TURNSTILE_TENANT, TURNSTILE_REGION",
        "TURNSTILE_TENANT": "7",
        "TURNSTILE_REGION": "eu",
        "TURNSTILE_EXECUTOR_SERVICE_HOST": "10.0.0.1",
        "TURNSTILE_EXECUTOR_SERVICE_PORT_HTTP": "8000",
        "TURNSTILE_EXECUTOR_PORT": "tcp://10.0.0.1:8000",
        "TURNSTILE_EXECUTOR_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    assert unknown_settings(environment) == []
