"""Configuration files and environment of a private RabbitMQ server; valid for RabbitMQ 3.10 to 4.x."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from turnstile.localservers.ports import LOOPBACK, free_port
from turnstile.localservers.processes import write_for_server

NODE = "turnstile@localhost"
USER = "turnstile"
PASSWORD = "loopback-only"
_SCHEDULERS = 2
_TICK_MS = 60_000
_TICK_MS_MIN = 1_000


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


def write_settings(
    folder: Path,
    ports: Ports,
    consumer_timeout_seconds: float,
    more: Mapping[str, str],
) -> None:
    """Write the broker's configuration files into `folder`, readable by its user."""
    consumer_timeout_ms = round(consumer_timeout_seconds * 1000)
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
        "consumer_timeout": str(consumer_timeout_ms),
    }
    settings |= more
    lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
    write_for_server(folder / "rabbitmq.conf", lines)
    # RabbitMQ checks the timeout once per tick; `rabbitmq.conf` has no setting for the tick.
    tick_ms = min(_TICK_MS, max(_TICK_MS_MIN, consumer_timeout_ms // 4))
    write_for_server(folder / "advanced.config", f"[{{rabbit, [{{channel_tick_interval, {tick_ms}}}]}}].\n")
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
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
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
