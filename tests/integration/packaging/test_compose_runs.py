"""compose.yaml without its containers: its commands, in its order and with its settings, run an execution."""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from tests.support.traffic import until
from tests.unit.packaging.test_compose import COMPOSE, SERVICES, new_environment
from turnstile.localservers import BrokerServer, DatabaseServer, PostgresServer, RabbitServer
from turnstile.localservers.ports import free_port
from turnstile.localservers.services import Service, environment_without, serving


class Machine:
    """Stands for the containers: the servers are elsewhere, the rest is as the file says."""

    def __init__(
        self, postgresql: PostgresServer, rabbitmq: RabbitServer, given: Mapping[str, str], folder: Path
    ) -> None:
        self._folder = folder
        (folder / "actions.py").write_text(COMPOSE.configs["actions"].content)
        self.token = given["TURNSTILE_API_TOKEN"]
        # The owner's and the administrator's password is what these servers know.
        self._given = dict(given) | {"RABBITMQ_PASSWORD": "loopback-only", "POSTGRES_PASSWORD": "any"}
        self._hosts = {
            "postgres:5432": f"127.0.0.1:{postgresql.port}",
            "rabbitmq:5672": f"127.0.0.1:{rabbitmq.ports.amqp}",
            "rabbitmq:15672": f"127.0.0.1:{rabbitmq.ports.management}",
        }

    def settings(self, name: str) -> dict[str, str]:
        """Return a service's environment as Compose would make it."""
        return {key: self._filled(value) for key, value in SERVICES[name].environment.items()}

    def run(self, name: str) -> None:
        """Run a service that ends, to its end."""
        program, *arguments = SERVICES[name].command
        written = [argument.replace("/tmp", str(self._folder)) for argument in arguments]
        done = subprocess.run(
            [sys.executable, "-m", f"turnstile.{program}.cli", *written],
            env=self._environment(self.settings(name)),
            cwd=self._folder, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def service(self, name: str, port_setting: str) -> Service:
        """Return a service that stays, on a port that is free here."""
        program, *arguments = SERVICES[name].command
        port = free_port()
        settings = self.settings(name) | {port_setting: str(port)}
        return Service(
            name=name,
            arguments=[f"turnstile.{program}.cli", *arguments],
            folder=self._folder,
            environment=self._environment(settings),
            port=port,
        )

    def _environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        return environment_without("TURNSTILE_", importable=self._folder) | dict(settings)

    def _filled(self, value: str) -> str:
        filled = re.sub(r"\$\{(\w+):[?-][^}]*\}", lambda found: self._given[found[1]], value)
        for host, here in self._hosts.items():
            filled = re.sub(rf"\b{re.escape(host)}\b", here, filled)
        return filled


@pytest.fixture
def machine(
    postgresql: DatabaseServer, rabbitmq: BrokerServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Machine]:
    """The session's servers, with what the images of PostgreSQL and RabbitMQ make at their first start."""
    if not (isinstance(postgresql, PostgresServer) and isinstance(rabbitmq, RabbitServer)):
        pytest.skip("the accounts are made on servers of our own only")
    postgresql.execute("CREATE ROLE turnstile LOGIN SUPERUSER")
    postgresql.create_database("turnstile")
    rabbitmq.create_vhost("turnstile")
    yield Machine(postgresql, rabbitmq, new_environment(capsys), tmp_path)
    rabbitmq.delete_vhost("turnstile")
    postgresql.drop_database("turnstile")
    postgresql.execute("DROP ROLE turnstile")


async def test_the_started_services_run_a_submitted_execution(machine: Machine) -> None:
    for name in ("migrate", "permissions"):
        await asyncio.to_thread(machine.run, name)
    executor = machine.service("executor", "TURNSTILE_HTTP_PORT")
    worker = machine.service("worker", "TURNSTILE_WORKER_HTTP_PORT")
    token = {"Authorization": f"Bearer {machine.token}"}
    async with (
        serving([executor, worker], last_signal=signal.SIGTERM),
        httpx.AsyncClient(base_url=f"{executor.url}/api/v1", headers=token, trust_env=False) as http,
    ):
        body = {"action_ref": "greetings.greet", "parameters": {"name": "Ada"}}
        accepted = await http.post("/executions", json=body)
        assert accepted.status_code == httpx.codes.ACCEPTED, accepted.text

        async def completed() -> bool:
            shown = (await http.get(f"/executions/{accepted.json()['id']}")).json()
            assert shown["status"] not in ("failed", "timeout"), shown
            return bool(shown["status"] == "completed")

        await until(completed, "it ran")
