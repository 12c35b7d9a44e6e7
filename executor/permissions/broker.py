"""The services' accounts on a RabbitMQ server, and what each may do there, as RabbitMQ's patterns.

A worker creates and reads the queue of its session, which is exclusive to its connection, and publishes to
the exchange `executor`, to which nothing but the leader's queues is bound; it binds nothing. So it cannot
submit, tell listeners anything or give orders to other workers: it has no right to `executions` or to the
default exchange, and may write to no queue or exchange of its own. What it reports is believed only with the
secret of the worker that it names. `definitions` is a file that a broker imports; `ManagementApi` is the
management API, as an administrator uses it. In the vhost of the installation, an account gets these rights,
whatever it had.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import httpx

from turnstile.common.broker.topology import EXECUTIONS, EXECUTOR, EXECUTOR_REQUESTS
from turnstile.executor.permissions.credentials import Login, broker_hash, broker_hash_matches
from turnstile.executor.permissions.database import SetupRefused
from turnstile.executor.permissions.plan import AccountChange, AccountStep, Check, Present

_TIMEOUT_SECONDS: Final = 30.0
NOTHING: Final = "^$"
_ID: Final = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OURS: Final = r"^(executions|executor)(\..+)?$|^amq\.gen-.+$"
"""With the queue of each leader process for questions, which the broker names."""
_SESSION_QUEUES: Final = rf"^worker\.{_ID}\.[0-9]+$"
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


_EXECUTOR: Final = Account(
    service="executor",
    configure=_OURS,
    # The default exchange: it leads to the sessions of workers, and to any queue that a submitter names for
    # its reply.
    write=rf"{_OURS}|^amq\.default$",
    read=_OURS,
)
_WORKER: Final = Account(
    service="worker",
    configure=_SESSION_QUEUES,
    write=f"^{EXECUTOR}$",
    # Not the exchange: an account that may read an exchange may bind a queue to it.
    read=_SESSION_QUEUES,
)
_CLIENT: Final = Account(
    service="client",
    configure=_CLIENT_QUEUES,
    write=rf"^{EXECUTIONS}$|^executor\.requests$|{_CLIENT_QUEUES}",
    read=rf"^{EXECUTIONS}$|{_CLIENT_QUEUES}",
    topics={
        EXECUTIONS: Topics(
            write=r"^execution\.(requested|cancel_requested)$",
            read=r"^execution\.(completed(\..+)?|status_changed)$",
        ),
        EXECUTOR_REQUESTS: Topics(write=r"^execution\.(requested|cancel_requested)$"),
    },
)
ACCOUNTS: Final = (_EXECUTOR, _WORKER, _CLIENT)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAccount:
    """An account as the broker has it."""

    vhosts: frozenset[str]
    """Those in which it has rights."""
    password_hash: str
    hashing_algorithm: str
    permissions: Sequence[Mapping[str, str]]
    topic_permissions: Sequence[Mapping[str, str]]

    def present(self, vhost: str, login: Login) -> Present:
        """Return what a plan needs to know."""
        (rights,) = (account for account in ACCOUNTS if account.service == login.service)
        found = [entry for entry in (*self.permissions, *self.topic_permissions) if entry["vhost"] == vhost]
        expected = [permission(rights), *topic_permissions(rights)]
        is_current = all(any(right.items() <= entry.items() for entry in found) for right in expected)
        return Present(users=self.vhosts, password=self._check(login), is_outdated=not is_current)

    def _check(self, login: Login) -> Check:
        if not self.password_hash:
            return "none"
        matches = broker_hash_matches(login.password, self.password_hash, self.hashing_algorithm)
        return "unknown" if matches is None else "same" if matches else "other"


class ManagementApi:
    """The management API of RabbitMQ, as an administrator. Raises SetupRefused or httpx.HTTPError."""

    def __init__(self, url: str, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        """Connect at the first request; raises ValueError or httpx.InvalidURL for an invalid URL."""
        parts = urlsplit(url)
        self.user = unquote(parts.username or "guest")
        password = unquote(parts.password or "guest")
        address = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
        self._http = httpx.Client(
            base_url=address.rstrip("/") + "/api", auth=(self.user, password), timeout=timeout_seconds
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def has_vhost(self, vhost: str) -> bool:
        """Return whether the vhost exists."""
        return self._get(f"/vhosts/{_segment(vhost)}") is not None

    def read_policies(
        self, vhost: str, kind: Literal["policies", "operator-policies"]
    ) -> list[dict[str, Any]]:
        """Return the policies of one kind in the vhost."""
        return self._get(f"/{kind}/{_segment(vhost)}") or []

    def read_accounts(self, names: Collection[str]) -> dict[str, BrokerAccount]:
        """Return those of the accounts that exist."""
        if self.user in names:
            raise SetupRefused(f"{self.user!r} is the account of a service; connect as an administrator")
        read = {name: self._read_account(name) for name in names}
        return {name: account for name, account in read.items() if account is not None}

    def change_accounts(self, vhost: str, steps: Iterable[AccountStep], logins: Mapping[str, Login]) -> None:
        """Create and change accounts as planned, and give them their rights; `logins` are by service."""
        if not self.has_vhost(vhost):
            self._put(f"/vhosts/{_segment(vhost)}", {})
        for step in steps:
            if step.server == "broker":
                self._change(vhost, step, logins[step.service])

    def _read_account(self, name: str) -> BrokerAccount | None:
        path = f"/users/{_segment(name)}"
        user = self._get(path)
        if user is None:
            return None
        permissions = self._get(f"{path}/permissions") or []
        return BrokerAccount(
            vhosts=frozenset(entry["vhost"] for entry in permissions),
            password_hash=user.get("password_hash", ""),
            hashing_algorithm=user.get("hashing_algorithm", ""),
            permissions=permissions,
            topic_permissions=self._get(f"{path}/topic-permissions") or [],
        )

    def _change(self, vhost: str, step: AccountStep, login: Login) -> None:
        (account,) = (account for account in ACCOUNTS if account.service == step.service)
        user, path = _segment(step.name), f"{_segment(vhost)}/{_segment(step.name)}"
        if step.change is not AccountChange.KEEP:
            self._put(f"/users/{user}", user_definition(step.name, broker_hash(login.password)))
        # Topic limits first: until its permissions follow, the account may do nothing.
        for topic in topic_permissions(account):
            self._put(f"/topic-permissions/{path}", topic)
        self._put(f"/permissions/{path}", permission(account))

    def _get(self, path: str) -> Any:
        """Return what the API answers; None if it does not exist."""
        answer = self._http.get(path)
        return (
            None if answer.status_code == httpx.codes.NOT_FOUND else self._checked("GET", path, answer).json()
        )

    def _put(self, path: str, body: dict[str, Any]) -> None:
        self._checked("PUT", path, self._http.put(path, json=body))

    @staticmethod
    def _checked(method: str, path: str, answer: httpx.Response) -> httpx.Response:
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise SetupRefused(
                "the management API refuses the user; connect as a user with the tag administrator"
            )
        if answer.is_error:
            raise SetupRefused(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
        return answer


def _segment(name: str) -> str:
    return quote(name, safe="")
