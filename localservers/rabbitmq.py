"""RabbitMQ servers: vhosts on any server by URL, and a private server on loopback ports.

`BrokerServer` works over the management HTTP API, since each call of `rabbitmqctl` starts an Erlang VM of its
own. `RabbitServer` runs a broker with its data in a folder; a folder with data is used again.
"""

import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import httpx

from turnstile.localservers.binaries import find_epmd, find_rabbitmq
from turnstile.localservers.ports import LOOPBACK, free_port
from turnstile.localservers.processes import (
    ServerProcess,
    run_once,
    server_folder,
    server_user,
    wait_until_ready,
    write_for_server,
)

_REQUEST_SECONDS = 30.0
_PROBE_SECONDS = 5.0
_DEFAULT_VHOST = "/"
_MANAGEMENT_PORT = 15672
_EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
NODE = "turnstile@localhost"
USER = "turnstile"
PASSWORD = "loopback-only"
_SCHEDULERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The loopback ports of one server."""

    amqp: int
    management: int
    distribution: int
    epmd: int

    @classmethod
    def free(cls) -> "Ports":
        """Pick four different free ports."""
        picked: dict[str, int] = {}
        for name in ("amqp", "management", "distribution", "epmd"):
            while (port := free_port(f"rabbitmq {name}")) in picked.values():
                pass
            picked[name] = port
        return cls(**picked)


class BrokerServer:
    """A RabbitMQ server, private or not; `server_url` may name any vhost."""

    def __init__(self, server_url: str, management_url: str | None = None) -> None:
        self._server_url = server_url
        self._parts = urlsplit(server_url)
        self.management_url = management_url or f"http://{self._parts.hostname}:{_MANAGEMENT_PORT}"
        self._user = unquote(self._parts.username or "guest")
        password = unquote(self._parts.password or "guest")
        # trust_env off: a proxy of the environment must not be used for a server on this machine.
        self._http = httpx.Client(
            base_url=self.management_url,
            auth=(self._user, password),
            timeout=_REQUEST_SECONDS,
            trust_env=False,
        )

    def url(self, vhost: str = _DEFAULT_VHOST) -> str:
        """Return the AMQP URL of a vhost, which may be missing."""
        return urlunsplit(self._parts._replace(path="/" + quote(vhost, safe="")))

    def create_vhost(self, name: str) -> str:
        """Create a vhost with all permissions for the user of the URL, and return its AMQP URL."""
        self.call("PUT", f"/api/vhosts/{_segment(name)}", {})
        self.call("PUT", f"/api/permissions/{_segment(name)}/{_segment(self._user)}", _EVERYTHING)
        return self.url(name)

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost, its content and its connections; no effect where it is missing."""
        self.call("DELETE", f"/api/vhosts/{_segment(name)}", missing_ok=True)

    def is_ready(self) -> bool:
        """Whether the server listens for AMQP connections."""
        try:
            answer = self._http.get("/api/health/checks/protocol-listener/amqp", timeout=_PROBE_SECONDS)
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK

    def version(self) -> str:
        """Return the version of the server."""
        return str(self.call("GET", "/api/overview").json()["rabbitmq_version"])

    def close(self) -> None:
        """Close the HTTP connection to the server."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self, method: str, path: str, body: Mapping[str, object] | None = None, *, missing_ok: bool = False
    ) -> httpx.Response:
        """Call the management API; raises httpx.HTTPError."""
        answer = self._http.request(method, path, json=body)
        if not (missing_ok and answer.status_code == httpx.codes.NOT_FOUND):
            answer.raise_for_status()
        return answer


def _segment(name: str) -> str:
    return quote(name, safe="")


_START_SECONDS = 90.0
_STOP_SECONDS = 30.0
_EPMD_STOP_SECONDS = 5.0


class RabbitServer(BrokerServer):
    """A private RabbitMQ server with an Erlang port mapper (epmd) of its own.

    Usually one epmd serves all Erlang programs of a machine and outlives them. A private one on a port of its
    own ends with the broker, and the node's name cannot clash. The nodes of a cluster share one.
    """

    def __init__(self, *, folder: Path, ports: Ports, account: str | None, node: str, own_epmd: bool) -> None:
        super().__init__(
            f"amqp://{USER}:{PASSWORD}@{LOOPBACK}:{ports.amqp}/%2F", f"http://{LOOPBACK}:{ports.management}"
        )
        self.folder = folder
        self.ports = ports
        self._programs = find_rabbitmq()
        self._account = account
        self._own_epmd = own_epmd
        self._environment = environment(folder, ports, self._programs, node)
        self._epmd, self._node = self._run()

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        ports: Ports | None = None,
        node: str = NODE,
        own_epmd: bool = True,
    ) -> Self:
        """Start a broker with its data in `folder`; return when it accepts connections.

        Without `own_epmd`, an epmd runs already on its port.
        """
        user = server_user("rabbitmq")
        server_folder(folder, user)
        ports = ports or Ports.free()
        _write_settings(folder, ports, settings or {})
        return cls(folder=folder, ports=ports, account=user, node=node, own_epmd=own_epmd)

    @property
    def pid(self) -> int:
        """The process id of the Erlang VM; changes with each restart."""
        return self._node.pid

    @property
    def is_running(self) -> bool:
        """Whether any process of the server still runs."""
        return self._node.is_running or (self._epmd is not None and self._epmd.is_running)

    def stop(self) -> None:
        """Stop the broker gracefully, which takes about seven seconds; clients are disconnected at once."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker (SIGKILL).

        RabbitMQ saves its list of quorum queues only now and then: a queue declared seconds before a kill
        returns without messages and without a leader, and every call to it hangs.
        """
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the broker if it runs, and start it on the same ports with the same data."""
        self.stop()
        self._epmd, self._node = self._run()

    def pause(self) -> None:
        """Freeze the broker: connections stay open and nothing answers."""
        self._node.pause()

    def resume(self) -> None:
        """Resume a frozen broker."""
        self._node.resume()

    def close(self) -> None:
        """Stop the broker and close the HTTP connection to it."""
        self.stop()
        super().close()

    def ctl(self, *arguments: str) -> str:
        """Run `rabbitmqctl` and return its output; takes about a second."""
        command = [str(self._programs / "rabbitmqctl"), *arguments]
        return run_once(command, folder=self.folder, environment=self._environment, user=self._account)

    def _run(self) -> tuple[ServerProcess | None, ServerProcess]:
        with ExitStack() as on_failure:
            epmd = None
            if self._own_epmd:
                epmd = self._start_program("epmd", [str(find_epmd()), "-port", str(self.ports.epmd)])
                on_failure.callback(_stop_epmd, epmd)
            node = self._start_program("rabbitmq", [str(self._programs / "rabbitmq-server")])
            on_failure.callback(node.stop, signal.SIGKILL, _STOP_SECONDS)
            wait_until_ready(self.is_ready, node, _START_SECONDS)
            on_failure.pop_all()
        return epmd, node

    def _start_program(self, name: str, command: list[str]) -> ServerProcess:
        return ServerProcess.start(
            name,
            command,
            folder=self.folder,
            environment=self._environment,
            user=self._account,
            last_signal=signal.SIGKILL,
            grace_seconds=_EPMD_STOP_SECONDS,
        )

    def _end(self, how: signal.Signals) -> None:
        self._node.stop(how, _STOP_SECONDS)
        _stop_epmd(self._epmd)


def _stop_epmd(epmd: ServerProcess | None) -> None:
    if epmd is not None:
        epmd.stop(signal.SIGTERM, _EPMD_STOP_SECONDS)


def _write_settings(folder: Path, ports: Ports, more: Mapping[str, str]) -> None:
    """Write the broker's configuration files into `folder`, readable by its user."""
    settings = {
        "listeners.tcp.1": f"{LOOPBACK}:{ports.amqp}",
        "management.tcp.ip": LOOPBACK,
        "management.tcp.port": str(ports.management),
        "default_user": USER,
        "default_pass": PASSWORD,
        "log.console": "false",
        "log.file": str(folder / "rabbitmq-node.log"),
        "log.file.level": "warning",
        # The demo must run on a machine with a nearly full disk.
        "disk_free_limit.absolute": "50MB",
        "vm_memory_high_watermark.relative": "0.4",
        "collect_statistics_interval": "10000",
    }
    settings |= more
    lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
    write_for_server(folder / "rabbitmq.conf", lines)
    write_for_server(folder / "enabled_plugins", "[rabbitmq_management].\n")


def environment(folder: Path, ports: Ports, programs: Path, node: str = NODE) -> dict[str, str]:
    """Return the environment of the broker, of epmd and of rabbitmqctl; nothing is inherited but PATH."""
    on_loopback = "-kernel inet_dist_use_interface {" + LOOPBACK.replace(".", ",") + "}"
    return {
        "HOME": str(folder),
        "PATH": os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)]),
        "LANG": "C.UTF-8",
        "ERL_CRASH_DUMP_SECONDS": "0",
        "ERL_EPMD_PORT": str(ports.epmd),
        "ERL_EPMD_ADDRESS": LOOPBACK,
        # Not /etc/rabbitmq/rabbitmq-env.conf, which belongs to the machine's own broker.
        "RABBITMQ_CONF_ENV_FILE": str(folder / "no-rabbitmq-env.conf"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "no-advanced.config"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
        "RABBITMQ_SCHEMA_DIR": str(folder / "schema"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_PID_FILE": str(folder / "rabbitmq.pid"),
        "RABBITMQ_NODENAME": node,
        "RABBITMQ_DIST_PORT": str(ports.distribution),
        # Makes the start script exec the Erlang VM instead of waiting for it.
        "RUNNING_UNDER_SYSTEMD": "true",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            f"+S {_SCHEDULERS}:{_SCHEDULERS} +sbwt none +sbwtdcpu none +sbwtdio none {on_loopback}"
        ),
        "RABBITMQ_CTL_ERL_ARGS": on_loopback,
    }
