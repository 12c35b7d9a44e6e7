"""The services' accounts on a RabbitMQ server.

In: the table of rights, names and passwords. Out: the definitions that a broker imports, from a file
(`rabbitmqctl import_definitions`) or by its management API. In the vhost of the installation, an account gets
the rights of the table, whatever it had.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Self
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import httpx

from turnstile.executor.permissions.credentials import Login, broker_hash, check_broker_hash
from turnstile.executor.permissions.plan import AccountChange, AccountStep, Present, SetupRefused
from turnstile.executor.permissions.rights import BROKER, BrokerRights

_TIMEOUT_SECONDS: Final = 30.0


def definitions(
    vhost: str, logins: Iterable[Login], *, kept: Collection[str] = (), usable: bool = True
) -> dict[str, Any]:
    """Return what a broker imports. `kept` are services whose passwords stay as they are.

    Accounts that are not `usable` cannot log in until they get a password.
    """
    rights = [(login, BROKER[login.service]) for login in logins]
    return {
        "vhosts": [{"name": vhost}],
        "users": [
            {
                "name": login.name,
                "password_hash": broker_hash(login.password) if usable else "",
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": "",
            }
            for login, _ in rights
            if login.service not in kept
        ],
        "permissions": [{"vhost": vhost, "user": login.name, **_permission(each)} for login, each in rights],
        "topic_permissions": [
            {"vhost": vhost, "user": login.name, **topic} for login, each in rights for topic in _topics(each)
        ],
    }


def _permission(rights: BrokerRights) -> dict[str, str]:
    return {"configure": rights.configure, "write": rights.write, "read": rights.read}


def _topics(rights: BrokerRights) -> list[dict[str, str]]:
    return [{"exchange": exchange, **topics._asdict()} for exchange, topics in rights.topics.items()]


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
        return self._get("vhosts", vhost) is not None

    def read_policies(
        self, vhost: str, kind: Literal["policies", "operator-policies"]
    ) -> list[dict[str, Any]]:
        """Return the policies of one kind in the vhost."""
        return self._get(kind, vhost) or []

    def read_accounts(self, vhost: str, logins: Iterable[Login]) -> dict[str, Present]:
        """Return those of the accounts that exist, by service."""
        logins = list(logins)
        if self.user in {login.name for login in logins}:
            raise SetupRefused(f"{self.user!r} is the account of a service; connect as an administrator")
        read = {login.service: self._read_account(vhost, login) for login in logins}
        return {service: present for service, present in read.items() if present is not None}

    def change_accounts(self, vhost: str, steps: Iterable[AccountStep], logins: Mapping[str, Login]) -> None:
        """Create and change accounts as planned, and give them their rights; `logins` are by service."""
        kept = {
            step.service for step in steps if step.server == "broker" and step.change is AccountChange.KEEP
        }
        self._request("POST", ("definitions",), definitions(vhost, logins.values(), kept=kept))

    def _read_account(self, vhost: str, login: Login) -> Present | None:
        user = self._get("users", login.name)
        if user is None:
            return None
        permissions = self._get("users", login.name, "permissions") or []
        topics = self._get("users", login.name, "topic-permissions") or []
        found = [entry for entry in (*permissions, *topics) if entry["vhost"] == vhost]
        rights = BROKER[login.service]
        expected = [_permission(rights), *_topics(rights)]
        return Present(
            users=frozenset(entry["vhost"] for entry in permissions),
            password=check_broker_hash(
                login.password, user.get("password_hash", ""), user.get("hashing_algorithm", "")
            ),
            is_outdated=not all(any(right.items() <= entry.items() for entry in found) for right in expected),
        )

    def _get(self, *steps: str) -> Any:
        """Return what the API answers; None if it does not exist."""
        answer = self._request("GET", steps)
        return None if answer is None else answer.json()

    def _request(
        self, method: str, steps: Sequence[str], body: Mapping[str, Any] | None = None
    ) -> httpx.Response | None:
        path = "".join(f"/{quote(step, safe='')}" for step in steps)
        answer = self._http.request(method, path, json=body)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise SetupRefused(
                "the management API refuses the user; connect as a user with the tag administrator"
            )
        if answer.is_error:
            raise SetupRefused(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
        return answer
