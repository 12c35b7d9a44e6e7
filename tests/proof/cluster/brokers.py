"""A cluster of private RabbitMQ servers on loopback."""

import os
import pwd
import secrets
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from turnstile.localservers import RabbitServer
from turnstile.localservers.binaries import find_epmd, find_rabbitmq, install_missing
from turnstile.localservers.ports import free_port
from turnstile.localservers.processes import ServerProcess, server_folder, server_user
from turnstile.localservers.rabbitmq import Ports, environment

_EPMD_STOP_SECONDS = 5.0


class RabbitCluster:
    """A cluster on loopback: nodes with the same queues, which may be killed and restarted one by one.

    They share one epmd, which ends with the cluster. As a context manager it stops all nodes.
    """

    def __init__(self, epmd: ServerProcess, nodes: Sequence[RabbitServer]) -> None:
        self._epmd = epmd
        self.nodes = nodes

    @classmethod
    def start(cls, folder: Path, size: int = 3) -> Self:
        """Start `size` nodes with their data in `folder`; return when each accepts connections.

        Raises `MissingBinaries` where RabbitMQ is not installed and cannot be, else `ServerFailed`.
        """
        install_missing()
        root = folder.resolve()
        epmd_port = free_port()
        cookie = secrets.token_hex(16)
        names = [f"node{number}@localhost" for number in range(1, size + 1)]
        epmd = _start_epmd(root / "epmd", epmd_port)
        nodes: list[RabbitServer] = []
        try:
            # One after the other: nodes that start together wait much longer for each other's locks.
            for name in names:
                ports = replace(Ports.free(), epmd=epmd_port)
                own = root / name.partition("@")[0]
                write_cookie(own, cookie)
                # It joins the first node; the first one starts the cluster.
                settings = cluster_settings(names[: len(nodes)][:1], name)
                nodes.append(
                    RabbitServer.start(own, settings=settings, ports=ports, node=name, own_epmd=False)
                )
                # It listens before it has started completely; a vhost created meanwhile never starts there.
                nodes[-1].ctl("await_startup")
        except BaseException:
            _end(nodes, epmd)
            raise
        return cls(epmd, nodes)

    def create_vhost(self, name: str) -> str:
        """Create a vhost; return its URL, which names all nodes."""
        self.nodes[0].create_vhost(name)
        return self.url(name)

    def url(self, vhost: str) -> str:
        """Return the URLs of all nodes for a vhost, separated by commas."""
        return ",".join(node.url(vhost) for node in self.nodes)

    def stop(self) -> None:
        """Kill all nodes: their data are not needed any more."""
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


def write_cookie(folder: Path, cookie: str) -> None:
    """Write the shared Erlang cookie, readable only by the broker's user."""
    user = server_user("rabbitmq")
    server_folder(folder, user)
    file = folder / ".erlang.cookie"
    file.touch(mode=0o600)
    file.write_text(cookie, encoding="ascii")
    if user:
        account = pwd.getpwnam(user)
        os.chown(file, account.pw_uid, account.pw_gid)


def cluster_settings(peers: Sequence[str], node: str) -> dict[str, str]:
    """Return the settings of a node that joins its peers at its first start."""
    return {
        "cluster_formation.peer_discovery_backend": "classic_config",
        # Otherwise a minority accepts messages that are lost when the partition heals.
        "cluster_partition_handling": "pause_minority",
        **{
            f"cluster_formation.classic_config.nodes.{number}": name
            for number, name in enumerate([*peers, node], 1)
        },
    }
