"""One installation as in production: TLS on every link, an account for each service, roles.

Out: `Fortress`: servers that require TLS and passwords, an executor and a worker with the accounts of
`executor setup-permissions`, and the credentials that a test needs to attack them.
"""

import os
import pwd
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import trustme

from turnstile.client import AsyncClient
from turnstile.localservers import LocalServers, PostgresServer, RabbitServer
from turnstile.localservers.ports import LOOPBACK, free_port
from turnstile.localservers.processes import server_folder, server_user
from turnstile.localservers.servers import ScratchFolder
from turnstile.localservers.services import Service, environment_without

ROOT = Path(__file__).parents[3]
DATABASE, VHOST = "turnstile", "turnstile"
TOKENS = {"ci": ("submit", "token-of-ci-7c1f"), "ops": ("operate", "token-of-ops-9d2e")}
OWNER_PASSWORD = "password-of-the-owner-51ab"
_FAST = {"TURNSTILE_LEASE_DURATION": "10s", "TURNSTILE_HEARTBEAT_INTERVAL": "2s"}
_COMMAND_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Fortress:
    """The servers, the services and their accounts."""

    servers: LocalServers
    authority: trustme.CA
    ca_file: Path
    folder: Path
    executor: Service
    worker: Service
    owner: Mapping[str, str]
    """The environment of the commands that set it up."""
    environments: Mapping[str, dict[str, str]]
    """The environment of each service, from its file of credentials."""
    printed: str
    """The output of the command that set it up."""

    @property
    def api_url(self) -> str:
        return self.executor.url

    def http(self, token: str = TOKENS["ops"][1]) -> httpx.AsyncClient:
        """An HTTP client that trusts the authority."""
        return httpx.AsyncClient(
            base_url=f"{self.api_url}/api/v1",
            headers={"Authorization": f"Bearer {token}"},
            verify=ssl.create_default_context(cafile=str(self.ca_file)),
            trust_env=False,
        )

    def client(self) -> AsyncClient:
        """A client under the account of the clients."""
        return AsyncClient(
            amqp_url=self.environments["client"]["TURNSTILE_AMQP_URL"],
            http_url=self.api_url,
            token=TOKENS["ci"][1],
            ca_file=str(self.ca_file),
        )

    def secrets(self) -> set[str]:
        """Every secret of the installation."""
        passwords = {
            part.partition("@")[0].rpartition(":")[2]
            for environment in self.environments.values()
            for url in environment.values()
            for part in [url.partition("://")[2]]
        }
        return passwords | {OWNER_PASSWORD} | {token for _, token in TOKENS.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The certificate of both servers."""

    certificate: str
    key: str
    authority: str
    """The authority that signs client certificates, if a client has one."""


class TlsService(Service):
    """A service with probes over TLS."""

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"


def run(*arguments: str, environment: Mapping[str, str]) -> str:
    """Run a command of ours to its end; return what it printed."""
    command = [sys.executable, "-m", *arguments]
    settings = environment_without("TURNSTILE_", importable=ROOT) | dict(environment)
    done = subprocess.run(
        command, env=settings, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def read_environment(file: Path) -> dict[str, str]:
    """Read a file of credentials as a service's environment."""
    return dict(line.split("=", 1) for line in file.read_text().splitlines())


@asynccontextmanager
async def fortified(folder: Path) -> AsyncIterator[Fortress]:
    """Start an installation, and stop it."""
    authority = trustme.CA()
    ca_file = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    tls, api = _tls_of(authority, folder)
    servers, amqps_port = start_servers(tls)
    with servers:
        owner = owner_environment(servers, ca_file, amqps_port)
        run("turnstile.executor.cli", "migrate", environment=owner)
        printed = set_up(owner, folder)
        environments = {
            service: read_environment(folder / "credentials" / f"{service}.env")
            for service in ("executor", "worker", "client")
        }
        executor, worker = _services(folder, environments, api)
        fortress = Fortress(
            servers=servers,
            authority=authority,
            ca_file=ca_file,
            folder=folder,
            executor=executor,
            worker=worker,
            owner=owner,
            environments=environments,
            printed=printed,
        )
        try:
            # The worker first: its account may declare only its own queue, so it waits for the executor.
            await worker.start()
            await executor.start()
            async with fortress.http() as http:
                await executor.ready(http)
                await worker.ready(http)
            yield fortress
        finally:
            await worker.end(signal.SIGTERM)
            await executor.end(signal.SIGTERM)


def _tls_of(authority: trustme.CA, folder: Path) -> tuple[ServerTls, dict[str, str]]:
    """Issue a certificate; return the TLS settings of the servers and of the executor's API."""
    issued = authority.issue_cert("localhost", "127.0.0.1")
    cert, key, tokens = (folder / name for name in ("cert.pem", "key.pem", "tokens"))
    certificate = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    cert.write_bytes(certificate)
    issued.private_key_pem.write_to_path(str(key))
    tokens.write_text("\n".join(f"{name}:{role}:{token}" for name, (role, token) in TOKENS.items()))
    tls = ServerTls(
        certificate=certificate.decode(),
        key=issued.private_key_pem.bytes().decode(),
        authority=authority.cert_pem.bytes().decode(),
    )
    return tls, {
        "TURNSTILE_HTTP_HOST": "localhost",
        "TURNSTILE_HTTP_TLS_CERT": str(cert),
        "TURNSTILE_HTTP_TLS_KEY": str(key),
        "TURNSTILE_API_TOKENS_FILE": str(tokens),
        "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
    }


def _services(
    folder: Path, environments: Mapping[str, dict[str, str]], api: Mapping[str, str]
) -> tuple[Service, Service]:
    executor_port, worker_port = free_port(), free_port()
    executor = TlsService(
        name="executor",
        arguments=["turnstile.executor.cli", "serve"],
        folder=folder,
        environment=_environment(environments["executor"], TURNSTILE_HTTP_PORT=executor_port, **api),
        port=executor_port,
    )
    actions = ["--actions", "tests.integration.security.guarded_actions"]
    worker = Service(
        name="worker",
        arguments=["turnstile.worker.cli", "serve", *actions],
        folder=folder,
        environment=_environment(environments["worker"], TURNSTILE_WORKER_HTTP_PORT=worker_port, **_FAST),
        port=worker_port,
    )
    return executor, worker


def owner_environment(servers: LocalServers, ca_file: Path, amqps_port: int) -> dict[str, str]:
    """Create the database and its owner, who is no superuser; return the environment of the setup."""
    servers.postgresql.execute(f"CREATE ROLE keeper LOGIN CREATEROLE PASSWORD '{OWNER_PASSWORD}'")
    servers.postgresql.execute(f"CREATE DATABASE {DATABASE} OWNER keeper")
    database = f"postgresql://keeper:{OWNER_PASSWORD}@localhost:{servers.postgresql.port}/{DATABASE}"
    management = servers.rabbitmq.management_url.replace("http://", "http://turnstile:loopback-only@")
    return {
        "TURNSTILE_DATABASE_URL": f"{database}?sslmode=verify-full&sslrootcert={ca_file}",
        "TURNSTILE_AMQP_URL": f"amqps://localhost:{amqps_port}/{VHOST}?cafile={ca_file}",
        "TURNSTILE_MANAGEMENT_URL": management,
    }


def set_up(owner: Mapping[str, str], folder: Path, *options: str) -> str:
    """Run the command that creates the accounts."""
    arguments = ["setup-permissions", "--credentials", str(folder / "credentials"), *options]
    return run("turnstile.executor.cli", *arguments, environment=owner)


def _environment(credentials: Mapping[str, str], **settings: str | int) -> dict[str, str]:
    given = {**credentials, **{name: str(value) for name, value in settings.items()}}
    return environment_without("TURNSTILE_", importable=ROOT) | given


def start_servers(tls: ServerTls) -> tuple[LocalServers, int]:
    """Start both servers in a scratch folder; return them and the port for AMQP over TLS."""
    scratch = ScratchFolder.create(in_memory=True)
    amqps_port = free_port()
    databases, broker = scratch.path / "postgresql", scratch.path / "rabbitmq"
    postgresql = PostgresServer.start(databases, durable=False, settings=_postgresql_tls(databases, tls))
    try:
        rabbitmq = RabbitServer.start(broker, settings=_rabbitmq_tls(broker, tls, port=amqps_port))
    except BaseException:
        postgresql.stop("immediate")
        raise
    servers = LocalServers(postgresql=postgresql, rabbitmq=rabbitmq, folder=scratch.path, scratch=scratch)
    return servers, amqps_port


def _postgresql_tls(folder: Path, tls: ServerTls) -> dict[str, str]:
    """Return PostgreSQL's settings: TCP connections need TLS and a password."""
    user = server_user("postgres")
    files = _written(folder, tls, user)
    hba = folder / "pg_hba.conf"
    # `trust` for the superuser only, as whom the tests administrate.
    _write(hba, f"host all postgres {LOOPBACK}/32 trust\nhostssl all all {LOOPBACK}/32 scram-sha-256\n", user)
    return {
        "ssl": "on",
        "ssl_cert_file": str(files["certificate"]),
        "ssl_key_file": str(files["key"]),
        "ssl_ca_file": str(files["authority"]),
        "hba_file": str(hba),
    }


def _rabbitmq_tls(folder: Path, tls: ServerTls, *, port: int) -> dict[str, str]:
    """Return RabbitMQ's settings: AMQP over TLS on an extra port; a client's certificate is verified."""
    files = _written(folder, tls, server_user("rabbitmq"))
    return {
        "listeners.ssl.1": f"{LOOPBACK}:{port}",
        "ssl_options.cacertfile": str(files["authority"]),
        "ssl_options.certfile": str(files["certificate"]),
        "ssl_options.keyfile": str(files["key"]),
        "ssl_options.verify": "verify_peer",
        "ssl_options.fail_if_no_peer_cert": "false",
    }


def _written(folder: Path, tls: ServerTls, user: str | None) -> dict[str, Path]:
    server_folder(folder, user)
    files = {name: folder / f"tls-{name}.pem" for name in ("certificate", "key", "authority")}
    for name, file in files.items():
        _write(file, getattr(tls, name), user)
    return files


def _write(file: Path, text: str, user: str | None) -> None:
    file.touch(mode=0o600)
    file.write_text(text, encoding="ascii")
    if user:
        account = pwd.getpwnam(user)
        os.chown(file, account.pw_uid, account.pw_gid)
