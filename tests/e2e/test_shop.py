"""The example shop: its one command, and its own tests, as its README runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sources import AMQP_URL, DATABASE_URL, MANAGEMENT_URL
from turnstile.localservers import BrokerServer, DatabaseServer

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(postgresql: DatabaseServer, rabbitmq: BrokerServer) -> dict[str, str]:
    """An emptied environment with the servers of the session."""
    assert rabbitmq.management_url is not None
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        DATABASE_URL: postgresql.url(),
        AMQP_URL: rabbitmq.url(),
        MANAGEMENT_URL: rabbitmq.management_url,
    }


@pytest.mark.whole
def test_its_command_plays_customers_and_checks_the_result(environment: dict[str, str]) -> None:
    ended = run([sys.executable, "-m", "examples.shop"], environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("PASS  ") == 4
    assert "refused    customer 9: pot is sold out" in ended.stdout
    assert "PermanentError: the card 0002 is declined" in ended.stdout
    assert ended.stderr == ""


def test_its_tests_pass(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-c", "examples/shop/pyproject.toml", "examples/shop"]
    ended = run(command, environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "11 passed" in ended.stdout


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
