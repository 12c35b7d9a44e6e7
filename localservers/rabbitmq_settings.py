"""What a private RabbitMQ server is told: its ports, its files, its environment.

In: a folder, ports and two limits. Out: the configuration files in that folder and the environment of every
program of this server. `rabbitmq.py` runs them. Valid for RabbitMQ 3.10 to 4.x.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from localservers.ports import LOOPBACK, free_port

NODE = "turnstile@localhost"
USER = "turnstile"
PASSWORD = "turnstile"
_SCHEDULERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where the parts of one server listen, all on loopback."""

    amqp: int
    management: int
    distribution: int
    epmd: int

    @classmethod
    def free(cls) -> "Ports":
        """Pick four different free ports."""
        picked: set[int] = set()
        while len(picked) < 4:
            picked.add(free_port())
        amqp, management, distribution, epmd = picked
        return cls(amqp=amqp, management=management, distribution=distribution, epmd=epmd)


def write_settings(folder: Path, ports: Ports, consumer_timeout_seconds: float) -> None:
    """Write the broker's configuration files into `folder`, where its user can read them."""
    settings = {
        "listeners.tcp.1": f"{LOOPBACK}:{ports.amqp}",
        "management.tcp.ip": LOOPBACK,
        "management.tcp.port": str(ports.management),
        "default_user": USER,
        "default_pass": PASSWORD,
        "log.console": "false",
        "log.file": str(folder / "rabbitmq-node.log"),
        "log.file.level": "warning",
        # Only so that a small machine is not refused: the scratch folder is deleted at the end.
        "disk_free_limit.absolute": "50MB",
        "vm_memory_high_watermark.relative": "0.4",
        "collect_statistics_interval": "10000",
        "consumer_timeout": str(round(consumer_timeout_seconds * 1000)),
    }
    lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
    (folder / "rabbitmq.conf").write_text(lines, encoding="utf-8")
    (folder / "enabled_plugins").write_text("[rabbitmq_management].\n", encoding="utf-8")


def environment(folder: Path, ports: Ports, programs: Path) -> dict[str, str]:
    """Return the environment of the broker, of epmd and of rabbitmqctl; nothing of ours is passed on."""
    loopback_term = "{" + LOOPBACK.replace(".", ",") + "}"
    return {
        "HOME": str(folder),
        "PATH": os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)]),
        "LANG": "C.UTF-8",
        "ERL_EPMD_PORT": str(ports.epmd),
        "ERL_EPMD_ADDRESS": LOOPBACK,
        # Not /etc/rabbitmq/rabbitmq-env.conf: that one is the system's own broker's.
        "RABBITMQ_CONF_ENV_FILE": str(folder / "no-rabbitmq-env.conf"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
        "RABBITMQ_SCHEMA_DIR": str(folder / "schema"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_PID_FILE": str(folder / "rabbitmq.pid"),
        "RABBITMQ_NODENAME": NODE,
        "RABBITMQ_DIST_PORT": str(ports.distribution),
        # Makes the start script become the Erlang machine instead of waiting beside it.
        "RUNNING_UNDER_SYSTEMD": "true",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            f"+S {_SCHEDULERS}:{_SCHEDULERS} +sbwt none +sbwtdcpu none +sbwtdio none "
            f"-kernel inet_dist_use_interface {loopback_term}"
        ),
    }
