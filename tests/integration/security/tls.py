"""Private servers whose clients must use TLS and a password.

In: a certificate with its key, and the authority of client certificates, in PEM. Out: running servers. Their
files are readable only by the servers' account.
"""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from turnstile.localservers import LocalServers, PostgresServer, RabbitServer
from turnstile.localservers.ports import LOOPBACK, free_port
from turnstile.localservers.processes import server_folder, server_user
from turnstile.localservers.servers import ScratchFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The certificate of both servers."""

    certificate: str
    key: str
    authority: str
    """The authority that signs client certificates, if a client has one."""


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
