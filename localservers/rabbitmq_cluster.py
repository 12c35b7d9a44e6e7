"""A private RabbitMQ cluster on loopback: several nodes that hold the same queues.

In: a folder. Out: nodes that may be killed and started again one by one, and the URL that names them all. The
nodes share one port mapper, whose end is the cluster's, so a node that dies takes nothing from the others.
`rabbitmq.py` runs a node.
"""

import secrets
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from turnstile.localservers.binaries import find_epmd, find_rabbitmq, install_missing
from turnstile.localservers.ports import free_port
from turnstile.localservers.processes import ServerProcess, server_folder, server_user
from turnstile.localservers.rabbitmq import RabbitServer
from turnstile.localservers.rabbitmq_settings import Membership, Ports, environment

_EPMD_STOP_SECONDS = 5.0


class RabbitCluster:
    """Nodes that know each other; as a context manager it ends them."""

    def __init__(self, epmd: ServerProcess, nodes: Sequence[RabbitServer]) -> None:
        self._epmd = epmd
        self.nodes = nodes

    @classmethod
    def start(cls, folder: Path, size: int = 3) -> Self:
        """Start `size` nodes whose data live in `folder`; return when each accepts connections.

        Raises `MissingBinaries` where RabbitMQ is not installed and may not be, else `ServerFailed`.
        """
        install_missing()
        place = folder.resolve()
        epmd_port = free_port()
        cookie = secrets.token_hex(16)
        names = [f"node{number}@localhost" for number in range(1, size + 1)]
        epmd = _start_epmd(place / "epmd", epmd_port)
        nodes: list[RabbitServer] = []
        try:
            # One after the other: nodes that start at once wait for each other's locks, for much longer.
            for name in names:
                ports = replace(Ports.free(), epmd=epmd_port)
                membership = Membership(node=name, meets=names[: len(nodes)][:1], cookie=cookie)
                nodes.append(RabbitServer.join(place / name.partition("@")[0], ports, membership))
                # It listens before it has started whole, and a vhost made in between is never started there.
                nodes[-1].ctl("await_startup")
        except BaseException:
            _end(nodes, epmd)
            raise
        return cls(epmd, nodes)

    def create_vhost(self, name: str) -> str:
        """Create a vhost in which our user may do everything; return the URL that names all nodes."""
        self.nodes[0].create_vhost(name)
        return self.url(name)

    def url(self, vhost: str) -> str:
        """Return the URLs of all nodes for one vhost, by commas."""
        return ",".join(node.url(vhost) for node in self.nodes)

    def stop(self) -> None:
        """End all nodes at once: nobody will read their data again."""
        _end(self.nodes, self._epmd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _start_epmd(folder: Path, port: int) -> ServerProcess:
    user = server_user("rabbitmq")
    server_folder(folder, user)
    return ServerProcess.start(
        "epmd",
        [str(find_epmd()), "-port", str(port)],
        folder=folder,
        environment=environment(folder, replace(Ports.free(), epmd=port), find_rabbitmq()),
        user=user,
        last_signal=signal.SIGTERM,
        grace_seconds=_EPMD_STOP_SECONDS,
    )


def _end(nodes: Sequence[RabbitServer], epmd: ServerProcess) -> None:
    for node in nodes:
        node.kill()
        node.close()
    epmd.stop(signal.SIGTERM, _EPMD_STOP_SECONDS)
