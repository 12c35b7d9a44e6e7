"""What each service's account of the broker may do, as RabbitMQ's patterns.

A worker creates and reads its own queue, reads the queues of pools, and publishes ends and moves; it binds
nothing. So it cannot submit: not by the exchange (its keys are limited), not by the default exchange (it has
no right to it), not through a queue or an exchange of its own (it may write to none). Out: `ACCOUNTS`, and
the definitions that a broker can import.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from turnstile.common.broker.topology import (
    DEAD_LETTER_EXCHANGE,
    EXECUTIONS,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_REQUESTS,
    WORKER_RETRY,
)

NOTHING: Final = "^$"
_ID: Final = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OURS: Final = r"^(executions|executor|worker)(\..+)?$"
_OWN_QUEUE: Final = rf"^worker\.{_ID}(\.[0-9])?$"
_CLIENT_QUEUES: Final = rf"^client\.{_ID}\.(answers|ends)$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Routing keys on one topic exchange."""

    write: str
    """To publish with."""
    read: str = NOTHING
    """To bind with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One service's rights in the vhost."""

    service: str
    configure: str
    write: str
    read: str
    topics: Mapping[str, Topics] = field(default_factory=dict)


def _only(*names: str) -> str:
    return f"^({'|'.join(name.replace('.', chr(92) + '.') for name in names)})$"


EXECUTOR: Final = Account(
    service="executor",
    configure=_OURS,
    # The default exchange: answers go to whatever queue a submitter named.
    write=rf"{_OURS}|^amq\.default$",
    read=_OURS,
)
WORKER: Final = Account(
    service="worker",
    configure=_OWN_QUEUE,
    write=_only(EXECUTIONS, EXECUTOR_COMPLETIONS, DEAD_LETTER_EXCHANGE, WORKER_RETRY),
    # Of the exchange `worker.retry` it must not read: who reads an exchange may bind a queue to it.
    read=r"^worker\.(?!retry$).+$",
    topics={
        EXECUTIONS: Topics(write=r"^(execution\.(completed|status_changed)|executor\.completions)$"),
        EXECUTOR_COMPLETIONS: Topics(write=r"^(execution\.completed|executor\.completions)$"),
        WORKER_RETRY: Topics(write=r"^execution\.scheduled\..+$"),
    },
)
CLIENT: Final = Account(
    service="client",
    configure=_CLIENT_QUEUES,
    write=rf"^{EXECUTIONS}$|^executor\.requests$|{_CLIENT_QUEUES}",
    read=rf"^{EXECUTIONS}$|{_CLIENT_QUEUES}",
    topics={
        EXECUTIONS: Topics(
            write=r"^execution\.(requested|cancel_requested)$",
            read=r"^execution\.(completed|status_changed)$",
        ),
        EXECUTOR_REQUESTS: Topics(write=r"^execution\.(requested|cancel_requested)$"),
    },
)
ACCOUNTS: Final = (EXECUTOR, WORKER, CLIENT)


def definitions(vhost: str, users: Mapping[str, str], hashes: Mapping[str, str]) -> dict[str, Any]:
    """Return what `rabbitmqctl import_definitions` takes; `users` and `hashes` are by service.

    A service without a hash gets an account that nobody can use until it has a password.
    """
    return {
        "vhosts": [{"name": vhost}],
        "users": [user_definition(users[a.service], hashes.get(a.service, "")) for a in ACCOUNTS],
        "permissions": [
            {"vhost": vhost, "user": users[account.service], **permission(account)} for account in ACCOUNTS
        ],
        "topic_permissions": [
            {"vhost": vhost, "user": users[account.service], **topic}
            for account in ACCOUNTS
            for topic in topic_permissions(account)
        ],
    }


def user_definition(name: str, password_hash: str) -> dict[str, Any]:
    """Return an account without any rights of administration."""
    return {
        "name": name,
        "password_hash": password_hash,
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": "",
    }


def permission(account: Account) -> dict[str, str]:
    """Return what it may do with exchanges and queues."""
    return {"configure": account.configure, "write": account.write, "read": account.read}


def topic_permissions(account: Account) -> list[dict[str, str]]:
    """Return with which routing keys it may publish and bind."""
    return [
        {"exchange": exchange, "write": topics.write, "read": topics.read}
        for exchange, topics in account.topics.items()
    ]
