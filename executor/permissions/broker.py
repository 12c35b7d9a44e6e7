"""The services' accounts on a RabbitMQ server, over its management API.

In: the management URL of an administrator, a vhost and the accounts. Out: users, and what each may do there.
May be done again at any time: an account's rights become these, whatever they were.
"""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import httpx

from turnstile.executor.permissions.accounts import ACCOUNTS, permission, topic_permissions, user_definition
from turnstile.executor.permissions.credentials import Login
from turnstile.executor.permissions.database import SetupRefused
from turnstile.executor.permissions.passwords import broker_hash

_TIMEOUT_SECONDS: Final = 30.0


def set_up_accounts(management_url: str, vhost: str, logins: Sequence[Login]) -> None:
    """Create the accounts and give them their rights; raises SetupRefused or httpx.HTTPError."""
    parts = urlsplit(management_url)
    user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
    if user in {login.name for login in logins}:
        raise SetupRefused(f"{user!r} is to be the account of a service; connect as an administrator")
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
    user, place = _segment(login.name), f"{_segment(vhost)}/{_segment(login.name)}"
    _put(http, f"/users/{user}", user_definition(login.name, broker_hash(login.password)))
    # Without its limits for the moment between the two it may do nothing at all.
    for topic in topic_permissions(account):
        _put(http, f"/topic-permissions/{place}", topic)
    _put(http, f"/permissions/{place}", permission(account))


def _put(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = http.put(path, json=body)
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise SetupRefused("the user is not let in; it takes one with the tag administrator")
    if answer.is_error:
        raise SetupRefused(f"PUT {path}: {answer.status_code} {answer.text[:200]}")


def _segment(name: str) -> str:
    return quote(name, safe="")
