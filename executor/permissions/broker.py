"""The services' accounts on a RabbitMQ server, and what each may do there, as RabbitMQ's patterns.

A worker creates and reads its own queue, reads the queues of pools, and publishes completions and status
events; it binds nothing. So it cannot submit: not through the exchange (its keys are limited), not through
the default exchange (it has no right to it), not through a queue or an exchange of its own (it may write to
none). `definitions` is a file that a broker imports; `set_up_accounts` uses the management API of an
administrator, and may run again at any time: an account gets these rights, whatever it had.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import httpx

from turnstile.common.broker.topology import (
    DEAD_LETTER_EXCHANGE,
    EXECUTIONS,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_REQUESTS,
    WORKER_RETRY,
)
from turnstile.executor.permissions.credentials import Login, broker_hash
from turnstile.executor.permissions.database import SetupRefused

_TIMEOUT_SECONDS: Final = 30.0
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
    # The default exchange: replies go to any queue that a submitter names.
    write=rf"{_OURS}|^amq\.default$",
    read=_OURS,
)
WORKER: Final = Account(
    service="worker",
    configure=_OWN_QUEUE,
    write=_only(EXECUTIONS, EXECUTOR_COMPLETIONS, DEAD_LETTER_EXCHANGE, WORKER_RETRY),
    # Not the exchange `worker.retry`: an account that may read an exchange may bind a queue to it.
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

    A service without a hash gets an account that cannot be used until it has a password.
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
    """Return an account without administration rights."""
    return {
        "name": name,
        "password_hash": password_hash,
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": "",
    }


def permission(account: Account) -> dict[str, str]:
    """Return the account's rights on exchanges and queues."""
    return {"configure": account.configure, "write": account.write, "read": account.read}


def topic_permissions(account: Account) -> list[dict[str, str]]:
    """Return the routing keys with which the account may publish and bind."""
    return [
        {"exchange": exchange, "write": topics.write, "read": topics.read}
        for exchange, topics in account.topics.items()
    ]


def set_up_accounts(management_url: str, vhost: str, logins: Sequence[Login]) -> None:
    """Create the accounts and give them their rights; raises SetupRefused or httpx.HTTPError."""
    parts = urlsplit(management_url)
    user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
    if user in {login.name for login in logins}:
        raise SetupRefused(f"{user!r} is the account of a service; connect as an administrator")
    address = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
    with httpx.Client(
        base_url=address.rstrip("/") + "/api", auth=(user, password), timeout=_TIMEOUT_SECONDS
    ) as http:
        if http.get(f"/vhosts/{_segment(vhost)}").status_code == httpx.codes.NOT_FOUND:
            _put(http, f"/vhosts/{_segment(vhost)}", {})
        for login in logins:
            _set_up(http, vhost, login)


def _set_up(http: httpx.Client, vhost: str, login: Login) -> None:
    (account,) = (account for account in ACCOUNTS if account.service == login.service)
    user, path = _segment(login.name), f"{_segment(vhost)}/{_segment(login.name)}"
    _put(http, f"/users/{user}", user_definition(login.name, broker_hash(login.password)))
    # Topic limits first: until its permissions follow, the account may do nothing.
    for topic in topic_permissions(account):
        _put(http, f"/topic-permissions/{path}", topic)
    _put(http, f"/permissions/{path}", permission(account))


def _put(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = http.put(path, json=body)
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise SetupRefused(
            "the management API refuses the user; connect as a user with the tag administrator"
        )
    if answer.is_error:
        raise SetupRefused(f"PUT {path}: {answer.status_code} {answer.text[:200]}")


def _segment(name: str) -> str:
    return quote(name, safe="")
