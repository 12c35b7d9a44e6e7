"""A private RabbitMQ server: own node, own ports, own Erlang port mapper, nobody else's.

In: a folder. Out: a running broker with its management API, and AMQP URLs of its vhosts. A folder that was
used before is taken up again. `rabbitmq_settings.py` says what it is told, `processes.py` runs it,
`vhosts.py` speaks to it.

The port mapper (epmd) is usually shared by all Erlang programs of a machine and outlives them; ours is a
second process on a port of its own that ends with the broker, so the node's name cannot clash and nothing
stays behind. The nodes of a cluster share one, which is not theirs: `rabbitmq_cluster.py` runs it.
"""

import signal
from pathlib import Path
from typing import Self

from turnstile.localservers.binaries import find_epmd, find_rabbitmq
from turnstile.localservers.ports import LOOPBACK, free_port
from turnstile.localservers.processes import (
    ServerProcess,
    run_once,
    server_folder,
    server_user,
    wait_until_ready,
)
from turnstile.localservers.rabbitmq_settings import (
    PASSWORD,
    USER,
    Membership,
    Ports,
    environment,
    write_cookie,
    write_settings,
)
from turnstile.localservers.tls import ServerTls, rabbitmq_tls
from turnstile.localservers.vhosts import BrokerServer

_START_SECONDS = 90.0
_STOP_SECONDS = 30.0
_EPMD_STOP_SECONDS = 5.0
CONSUMER_TIMEOUT_SECONDS = 1800.0


class RabbitServer(BrokerServer):
    """A RabbitMQ server of our own."""

    tls_port: int | None = None
    """Where it speaks AMQP over TLS, if it does."""

    def __init__(
        self,
        *,
        folder: Path,
        ports: Ports,
        programs: Path,
        account: str | None,
        membership: Membership | None = None,
    ) -> None:
        super().__init__(
            f"amqp://{USER}:{PASSWORD}@{LOOPBACK}:{ports.amqp}/%2F", f"http://{LOOPBACK}:{ports.management}"
        )
        self.folder = folder
        self.ports = ports
        self._programs = programs
        self._account = account
        self._is_member = membership is not None
        self._environment = environment(folder, ports, programs, membership)
        self._epmd, self._node = self._run()

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        consumer_timeout_seconds: float = CONSUMER_TIMEOUT_SECONDS,
        tls: ServerTls | None = None,
    ) -> Self:
        """Start a broker whose data live in `folder`; return when it accepts connections.

        `consumer_timeout_seconds`: how long a delivery may stay unacknowledged before its channel is closed.
        """
        programs = find_rabbitmq()
        user = server_user("rabbitmq")
        server_folder(folder, user)
        ports = Ports.free()
        tls_port = None if tls is None else free_port()
        more = None if tls is None or tls_port is None else rabbitmq_tls(folder, tls, user, port=tls_port)
        write_settings(folder, ports, consumer_timeout_seconds, tls=more)
        server = cls(folder=folder, ports=ports, programs=programs, account=user)
        server.tls_port = tls_port
        return server

    @classmethod
    def join(cls, folder: Path, ports: Ports, membership: Membership) -> Self:
        """Start one node of a cluster, whose port mapper runs already; return when it accepts connections."""
        programs = find_rabbitmq()
        user = server_user("rabbitmq")
        server_folder(folder, user)
        write_settings(folder, ports, CONSUMER_TIMEOUT_SECONDS, membership)
        write_cookie(folder, membership, user)
        return cls(folder=folder, ports=ports, programs=programs, account=user, membership=membership)

    @property
    def pid(self) -> int:
        """The Erlang machine's process id; changes with each restart."""
        return self._node.pid

    @property
    def is_running(self) -> bool:
        """Whether any process of the server is left."""
        return self._node.is_running or (self._epmd is not None and self._epmd.is_running)

    def stop(self) -> None:
        """Stop the broker in good order, which takes it about seven seconds; clients are cut off at once."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker (SIGKILL).

        It saves the list of its quorum queues only now and then: a queue declared seconds before a kill comes
        back without its messages and without a leader, so that every call to it hangs.
        """
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the broker unless it is down already, and start it on the same ports with the same data."""
        self.stop()
        self._epmd, self._node = self._run()

    def pause(self) -> None:
        """Freeze the broker: connections stay open and nothing answers."""
        self._node.pause()

    def resume(self) -> None:
        """Let a frozen broker run on."""
        self._node.resume()

    def close(self) -> None:
        """Stop the broker and let go of the HTTP connection to it."""
        self.stop()
        super().close()

    def ctl(self, *arguments: str) -> str:
        """Run `rabbitmqctl` with these arguments and return what it printed; takes about a second."""
        command = [str(self._programs / "rabbitmqctl"), *arguments]
        return run_once(command, folder=self.folder, environment=self._environment, user=self._account)

    def _run(self) -> tuple[ServerProcess | None, ServerProcess]:
        epmd = None
        if not self._is_member:
            epmd = self._start_program("epmd", [str(find_epmd()), "-port", str(self.ports.epmd)])
        try:
            node = self._start_program("rabbitmq", [str(self._programs / "rabbitmq-server")])
            try:
                wait_until_ready(self.is_ready, node, _START_SECONDS)
            except BaseException:
                node.stop(signal.SIGKILL, _STOP_SECONDS)
                raise
        except BaseException:
            _stop_epmd(epmd)
            raise
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
